"""Where in a program a call stands: the modules around it and the line."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any, NamedTuple

PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
LAYERS = os.path.join(PACKAGE, "nn", "")  # frames of ttmesh's own layers count as modules
_TOP = ("<module>", "main")
_MACHINERY = (f"{os.sep}_pytest{os.sep}", f"{os.sep}pluggy{os.sep}", "runpy.py", f"{os.sep}bin{os.sep}")


class Place(NamedTuple):
    """`module` is a path of objects and functions, outermost first; `site` a file and line."""

    module: str
    site: str


class Places:
    """Names objects by the attribute that holds them, or by their class and a number."""

    def __init__(self) -> None:
        self._objects: dict[int, tuple[Any, int]] = {}  # objects are kept: an id must not come again
        self._counts: dict[str, int] = {}

    def find(self) -> Place:
        """The place of the call that is being made."""
        frame: FrameType | None = sys._getframe(1)
        path: list[Any] = []  # innermost first: objects, and names of functions
        site = ""
        while frame is not None:
            code, here, line, locals_ = frame.f_code, frame.f_code.co_filename, frame.f_lineno, frame.f_locals
            frame = frame.f_back
            own_layer = here.startswith(LAYERS) and "self" in locals_
            hidden = here.startswith((PACKAGE, "<frozen", "<ttmesh")) and not own_layer
            if hidden or any(part in here for part in _MACHINERY):
                continue
            if not site and not own_layer:
                site = f"{os.path.basename(here)}:{line}"
            owner = locals_.get("self")
            if owner is not None:
                if not path or path[-1] is not owner:
                    path.append(owner)
            elif code.co_name not in _TOP and not code.co_name.startswith("<"):
                path.append(code.co_name)
        return Place("/".join(self._names(path[::-1])) or "(script)", site)

    def _names(self, path: list[Any]) -> list[str]:
        names, parent = [], None
        for part in path:
            if isinstance(part, str):
                names.append(part)
                continue
            names.append(_attribute_of(parent, part) or self._name(part))
            parent = part
        return names

    def _name(self, owner: object) -> str:
        kind = type(owner).__name__
        known = self._objects.get(id(owner))
        if known is None:
            self._counts[kind] = self._counts.get(kind, -1) + 1
            known = self._objects[id(owner)] = (owner, self._counts[kind])
        return f"{kind}[{known[1]}]" if known[1] else kind


def _attribute_of(parent: object, child: object) -> str | None:
    """The attribute of the parent that is the child, or the list or dict that holds it."""
    for name, value in getattr(parent, "__dict__", {}).items():
        if value is child:
            return str(name)
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                if item is child:
                    return f"{name}[{i}]"
        elif isinstance(value, dict):
            for key, item in value.items():
                if item is child:
                    return f"{name}[{key}]"
    return None
