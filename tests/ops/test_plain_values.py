"""A string, a number or a dict where TT-NN takes an object is refused at the call, by every operation."""

from __future__ import annotations

import inspect

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.base.argument_types import OBJECTS, WORDS, suggest_object
from ttmesh.ops.catalogue.definition import catalogue

OPERATIONS = sorted(catalogue)


def parameters_of(name: str) -> list[tuple[dict[str, object], str]]:
    """For every overload and every parameter that takes no words: dummies for the required ones, and the parameter."""
    found = []
    for overload in catalogue[name].function._overloads:
        parameters = overload.signature.parameters.values()
        required = {p.name: object() for p in parameters if p.default in (inspect.Parameter.empty, ...)}
        found += [(required, p.name) for p in parameters if p.name not in WORDS]
    return found


def test_no_operation_takes_a_word_for_an_object() -> None:
    tried = 0
    for name in OPERATIONS:
        function = catalogue[name].function
        for required, parameter in parameters_of(name):
            with pytest.raises(TypeError, match="incompatible function arguments") as refused:
                function.bind((), {**required, parameter: "auto"})
            if len(function._overloads) == 1:
                earlier = "is a object" in str(refused.value)  # the first wrong argument is named
                assert earlier or "'auto' is a str" in str(refused.value), (name, parameter)
            tried += 1
    assert tried > 3000


@pytest.mark.parametrize("value", [7, 0.5, {"a": 1}, ttnn.MathFidelity.HiFi4], ids=["int", "float", "dict", "enum"])
def test_no_operation_takes_a_number_a_dict_or_an_enum_for_a_config(value: object) -> None:
    tried = 0
    for name in OPERATIONS:
        for required, parameter in parameters_of(name):
            if not parameter.endswith("config") or suggest_object(parameter) is None:
                continue
            with pytest.raises(TypeError, match="incompatible function arguments"):
                catalogue[name].function.bind((), {**required, parameter: value})
            tried += 1
    assert tried > 500


def test_words_stay_where_they_belong() -> None:
    assert not [name for name in WORDS if suggest_object(name)]
    assert all(suggest_object(name) == hint for name, hint in OBJECTS.items())


def test_no_overload_loses_an_argument() -> None:
    for name in OPERATIONS:
        function = catalogue[name].function
        for overload, binder in zip(function._overloads, function._binders, strict=True):
            given = {parameter: object() for parameter in overload.signature.parameters}
            assert set(binder(**given).values()) == set(given.values()), f"{name}{overload.signature}"
