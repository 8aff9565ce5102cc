"""Reading a user's YAML: any file is either a value of the wanted type or one error that names what is wrong in it."""

from __future__ import annotations

import importlib
import re
import reprlib
import stat
from collections.abc import Callable, Hashable
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

MAX_BYTES = 1 << 20  # of a description; the largest of tt-metal's rank bindings has 100 KB
MAX_DEPTH = 100  # of brackets; the scanner takes quadratic time in it
MAX_SHOWN = 300  # characters of a value in an error
STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
VALIDATION = re.compile(r"(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>.*)`)?", re.DOTALL)
TYPES = {"null": type(None), "bool": bool, "int": int, "float": float, "str": str, "array": list, "object": dict}
UNKNOWN, MISSING = "Object contains unknown field `", "Object missing required field `"
T = TypeVar("T")


class DocumentError(Exception):
    """A file that cannot be read as what it should be; callers say it in their own error."""


class Mismatch(NamedTuple):
    """Where a document does not fit its type: the path, the value there, what was expected, a missing or unknown key."""

    path: str
    value: object
    expected: str
    unknown: str = ""
    missing: str = ""


class Mismatched(DocumentError):
    """A document whose values do not fit the type."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(f"{mismatch.path} is {shorten(mismatch.value)}, expected {mismatch.expected}")
        self.mismatch = mismatch


def read_text(path: Path) -> str:
    """The text of a regular file of reasonable size."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for a writer
            raise DocumentError("is not a regular file")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise DocumentError(f"is larger than {MAX_BYTES} bytes")
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not text (byte {data[error.start]:#04x} at {error.start})") from None
    except (OSError, ValueError) as error:
        raise DocumentError(f"cannot be read ({getattr(error, 'strerror', None) or error})") from None


def read_yaml(path: Path) -> object:
    """The values in a YAML file."""
    text = read_text(path)
    depths = accumulate(1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text))
    if max(depths, default=0) > MAX_DEPTH:
        raise DocumentError("is nested too deeply")
    yaml = importlib.import_module("yaml")  # few programs have a YAML of their own, and it takes a while to load
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_duplicates(loader, root, set())
        return loader.construct_document(root)
    except RecursionError:
        raise DocumentError("is nested too deeply") from None
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        # Only the first is the library's own: `!!bool x` is a KeyError there, `!!int ""` an IndexError.
        raise DocumentError(f"is not YAML: {' '.join(str(error).split())}") from None


def convert(document: object, wanted: Callable[..., T], *, strict: bool = True) -> T:
    """The document as a msgspec type; with strict=False numbers may be quoted."""
    try:
        return msgspec.convert(document, wanted, strict=strict)  # type: ignore[call-overload,no-any-return]
    except msgspec.ValidationError as error:
        raise Mismatched(_mismatch(document, str(error))) from None


def shorten(value: object) -> str:
    """A value for an error message; YAML aliases can expand to more than memory holds."""
    text = _SHORT.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _mismatch(document: object, text: str) -> Mismatch:
    found = VALIDATION.fullmatch(text)
    assert found is not None, text
    what, path = found["what"], (found["path"] or "$").removeprefix("$")
    value: Any = document
    path, in_mapping, _ = path.partition("[...]")
    for name, index in STEP.findall(path):
        value = value[name] if name else value[int(index)]
    if in_mapping and isinstance(value, dict):  # msgspec does not say which key; the type that it got does
        got = TYPES.get(what.rpartition("got `")[2].rstrip("`"))
        path, value = next(((f"{path}.{key}", v) for key, v in value.items() if type(v) is got), (path, value))
    for mark, key in ((UNKNOWN, "unknown"), (MISSING, "missing")):
        if what.startswith(mark):
            name = what.removeprefix(mark).rstrip("`")
            return Mismatch(path.lstrip("."), value, what, **{key: name})
    return Mismatch(path.lstrip("."), value, what.removeprefix("Expected "))


def _refuse_duplicates(loader: Any, node: Any, seen: set[int]) -> None:
    """A key that a mapping has twice is an error, instead of its last value winning."""
    if not isinstance(node.value, list) or id(node) in seen:
        return
    seen.add(id(node))
    keys = set()
    for child in node.value:
        if not isinstance(child, tuple):
            _refuse_duplicates(loader, child, seen)
            continue
        key_node, value_node = child
        _refuse_duplicates(loader, value_node, seen)
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable) or key in keys:
            raise ValueError(f"key {shorten(key)} is duplicate or cannot be a key\n{key_node.start_mark}")
        keys.add(key)


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = 8
        self.maxstring = self.maxother = 120

    def repr_int(self, x: int, level: int) -> str:
        """A number that str() takes."""
        return repr(x) if abs(x) < 10**40 else "a number of more than 40 digits"


_SHORT = _Short()
