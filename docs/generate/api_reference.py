"""The pages of the API reference, from TT-NN's signatures, the catalogue of operations and the table of names."""

from __future__ import annotations

import importlib
import inspect
from collections import defaultdict
from collections.abc import Iterable

from ttmesh import ttnn
from ttmesh.ops.catalogue.definition import OpFunction, catalogue
from ttmesh.ops.catalogue.signatures import REQUIRED, Overload, overloads
from ttmesh.ttnn.names import NAMES

LINE = 100  # a longer signature has one parameter per line
TITLES = {"ttnn": "Operations", "ttnn *_bw": "Gradients of operations"}


def list_reference_pages() -> dict[str, str]:
    """Path under docs/ -> text."""
    assert ttnn.add, "the namespace is loaded, and with it every operation"
    groups: dict[str, list[str]] = defaultdict(list)
    for name in sorted(catalogue):
        groups[_find_group(name)].append(name)
    pages = {_find_path(group): _format_operations(group, names) for group, names in sorted(groups.items())}
    pages["reference/functions.md"] = _format_functions()
    pages["reference/types.md"] = _format_types()
    return pages


def _find_group(name: str) -> str:
    module, _, last = name.rpartition(".")
    return "ttnn *_bw" if module == "ttnn" and last.endswith("_bw") else module


def _find_path(group: str) -> str:
    stem = {"ttnn": "operations", "ttnn *_bw": "gradients"}.get(group, group.removeprefix("ttnn.").replace(".", "_"))
    return f"reference/{stem}.md"


def _format_operations(group: str, names: Iterable[str]) -> str:
    about = "TT-NN's signatures; the pages are made from the code. Where a call has several forms, each is shown."
    parts = [f"# {TITLES.get(group, f'Operations of {group}')}\n\n{about}\n"]
    for name in names:
        function = catalogue[name].function
        forms = "\n".join(_format_call(name, overload) for overload in overloads(function.python_fully_qualified_name))
        parts.append(f"## {name}\n\n```py\n{forms}\n```\n\n{_describe_operation(function)}")
    return "\n".join(parts)


def _describe_operation(function: OpFunction) -> str:
    first = (function.__doc__ or "").strip().partition("\n\n")[0].replace("\n", " ")
    own = ", ".join(f"`{option}=`" for option in sorted(function.own_options))
    return first + (f"\n\nBeside TT-NN's: {own}." if own else "") + "\n"


def _format_call(name: str, overload: Overload) -> str:
    parts: list[str] = []
    for parameter in overload.signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_format_parameter(parameter, overload.object_defaults.get(parameter.name)))
    return _join_call(name, parts)


def _format_parameter(parameter: inspect.Parameter, named_default: str | None) -> str:
    star = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    if named_default is not None:
        return f"{parameter.name}={named_default}"
    if parameter.default is parameter.empty or parameter.default is REQUIRED:
        return star + parameter.name
    return f"{parameter.name}={parameter.default!r}"


def _join_call(name: str, parts: list[str]) -> str:
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= LINE else f"{name}(\n    " + ",\n    ".join(parts) + ",\n)"


def _format_functions() -> str:
    parts = ["# Functions\n\nFunctions of `ttnn` that are no operations: devices, queues, traces, transfers, files.\n"]
    for name, value in _list_names():
        if inspect.isfunction(value):
            parts.append(
                f"## ttnn.{name}\n\n```py\n{_format_python_call(f'ttnn.{name}', value)}\n```\n\n{_first_line(value)}\n"
            )
    return "\n".join(parts)


def _format_types() -> str:
    parts = ["# Types and constants\n\nClasses of `ttnn` with their public methods, and its constants.\n"]
    constants: list[str] = []
    for name, value in _list_names():
        if inspect.isclass(value):
            parts.append(f"## ttnn.{name}\n\n{_first_line(value)}\n\n{_format_members(value)}")
        elif not callable(value):
            constants.append(f"`ttnn.{name}`")
    return "\n".join([*parts, f"## Constants\n\n{', '.join(constants)}\n"])


def _format_members(cls: type) -> str:
    rows = []
    own = [base for base in reversed(cls.__mro__) if base.__module__.startswith("ttmesh.")]
    members = {name: member for base in own for name, member in vars(base).items()}
    for name, member in sorted(members.items()):
        if name.startswith("_"):
            continue
        if inspect.isfunction(member):
            rows.append((_format_python_call(name, member, line=10_000), _first_line(member)))
        elif isinstance(member, property) and member.fget is not None:
            rows.append((name, _first_line(member.fget)))
    if not rows:
        return ""
    body = "".join(f"| `{_escape(call)}` | {_escape(line)} |\n" for call, line in rows)
    return f"| member | what |\n|---|---|\n{body}"


def _format_python_call(name: str, function: object, *, line: int = LINE) -> str:
    parts: list[str] = []
    for parameter in inspect.signature(function).parameters.values():  # type: ignore[arg-type]
        if parameter.kind is parameter.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        if parameter.name != "self":
            parts.append(_format_parameter(parameter, None))
    return _join_call(name, parts) if line == LINE else f"{name}({', '.join(parts)})"


def _list_names() -> Iterable[tuple[str, object]]:
    for name, where in sorted(NAMES.items()):
        module, _, attribute = where.partition(":")
        value = getattr(importlib.import_module(module), attribute)
        if not isinstance(value, OpFunction):
            yield name, value


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0]


def _escape(text: str) -> str:
    return text.replace("|", r"\|")
