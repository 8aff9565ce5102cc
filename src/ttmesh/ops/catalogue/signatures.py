"""The call signatures of TT-NN operations, read from signatures.txt on first use."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import cache
from importlib.resources import files
from types import FunctionType, MappingProxyType
from typing import Final, NamedTuple

from ttmesh.base.errors import MeshError, suggest_names

REQUIRED: Final = ...  # the default of a required parameter that follows optional ones


class Overload(NamedTuple):
    """One call signature of an operation."""

    signature: inspect.Signature
    object_defaults: MappingProxyType[
        str, str
    ]  # parameter -> the TT-NN object that is its default, if that is not a literal


class UnknownOperationError(MeshError, AttributeError):
    """The table has no operation of this name."""


def names() -> tuple[str, ...]:
    """Every name with a signature, in the file's order: `ttnn.abs`, `ttnn.transformer.concatenate_heads`, …"""
    return tuple(_read_lines())


def registered_names() -> tuple[str, ...]:
    """The operations that TT-NN 0.81 registers, all of which have a signature."""
    return tuple(line for line in _read_data("names.txt") if not line.startswith("#"))


def list_parameters(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of a function's parameters; of plain functions without making a signature: there are a thousand."""
    if type(function) is FunctionType and not {"__wrapped__", "__signature__"}.intersection(vars(function)):
        code = function.__code__
        stars = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]
    return tuple(inspect.signature(function).parameters)


def signatures(name: str) -> tuple[inspect.Signature, ...]:
    """The overloads of an operation, most general first."""
    return tuple(overload.signature for overload in overloads(name))


@cache
def overloads(name: str) -> tuple[Overload, ...]:
    """The overloads of an operation with the TT-NN objects that literals cannot express."""
    check_known(name)
    return tuple(parse(line) for line in _read_lines()[name])


def check_known(name: str) -> None:
    """Refuse the name of an operation without a signature."""
    if name not in _read_lines():
        raise UnknownOperationError(
            f"no signature of {name!r} is known",
            expected="the name of a TT-NN operation, such as 'ttnn.add'",
            fix=suggest_names(name, _read_lines()),
        )


def parse(line: str) -> Overload:
    """The overload that one line of the file describes."""
    call, _, comment = line.partition("#")
    parameters = call.strip().partition("(")[2].removesuffix(")")
    function = ast.parse(f"def f({parameters}): ...").body[0]
    assert isinstance(function, ast.FunctionDef), f"{line!r} holds more than one call"
    return Overload(_make_signature(function.args), _parse_object_defaults(comment))


def _make_signature(arguments: ast.arguments) -> inspect.Signature:
    missing = len(arguments.args) - len(arguments.defaults)
    positional: list[ast.expr | None] = [None] * missing + list(arguments.defaults)
    parameters = [
        _make_parameter(argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default)
        for argument, default in zip(arguments.args, positional, strict=True)
    ]
    parameters += [
        _make_parameter(argument, inspect.Parameter.KEYWORD_ONLY, default)
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    ]
    return inspect.Signature(parameters)


def _make_parameter(argument: ast.arg, kind: inspect._ParameterKind, default: ast.expr | None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
    annotation = inspect.Parameter.empty if argument.annotation is None else int  # the only one in the file
    return inspect.Parameter(argument.arg, kind, default=value, annotation=annotation)


def _parse_object_defaults(comment: str) -> MappingProxyType[str, str]:
    text = comment.partition("default:")[2].partition("#")[0].strip()
    pairs = (pair.partition("=") for pair in text.split("; ") if pair)
    return MappingProxyType({name: value for name, _, value in pairs})


@cache
def _read_lines() -> dict[str, tuple[str, ...]]:
    table: dict[str, tuple[str, ...]] = {}
    for line in _read_data("signatures.txt"):
        if line and not line.startswith("#"):
            name = line.partition("(")[0]
            table[name] = (*table.get(name, ()), line)
    return table


def _read_data(file: str) -> list[str]:
    return files("ttmesh.ops.catalogue").joinpath(file).read_text(encoding="utf-8").splitlines()
