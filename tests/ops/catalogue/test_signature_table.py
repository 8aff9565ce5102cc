from __future__ import annotations

import inspect

import pytest

from ttmesh.ops.catalogue import signatures as signature_table
from ttmesh.ops.catalogue.signatures import REQUIRED, overloads, signatures


@pytest.mark.parametrize("name", signature_table.names())
def test_every_line_parses_to_a_signature(name: str) -> None:
    for overload in overloads(name):
        assert set(overload.object_defaults) <= set(overload.signature.parameters)
        assert all(overload.signature.parameters[p].default is None for p in overload.object_defaults)


def test_no_signature_is_listed_twice() -> None:
    lines = [(name, str(signature)) for name in signature_table.names() for signature in signatures(name)]

    assert len(lines) == len(set(lines))


def test_every_registered_operation_has_a_signature() -> None:
    registered = signature_table.registered_names()

    assert len(registered) == len(set(registered)) == 504
    assert set(registered) <= set(signature_table.names())


def test_keyword_only_parameters_and_defaults_are_kept() -> None:
    (softmax,) = signatures("ttnn.softmax")

    assert list(softmax.parameters)[:2] == ["input_tensor", "dim"]
    assert softmax.parameters["dim"].default == -1
    assert softmax.parameters["memory_config"].kind is inspect.Parameter.KEYWORD_ONLY
    assert softmax.parameters["numeric_stable"].default is True


def test_overloads_that_differ_in_names_are_separate() -> None:
    assert [list(signature.parameters)[1] for signature in signatures("ttnn.maximum")] == ["input_tensor_b", "input_b"]


def test_object_defaults_are_named_after_tt_nn() -> None:
    (rand,) = overloads("ttnn.rand")

    assert rand.object_defaults["layout"] == "ttnn.TILE_LAYOUT"
    assert rand.signature.parameters["layout"].default is None


def test_required_parameters_behind_optional_ones_are_marked() -> None:
    (empty,) = signatures("ttnn.empty")

    assert empty.parameters["device"].default is REQUIRED


def test_unknown_operation_suggests_near_names() -> None:
    with pytest.raises(AttributeError, match=r"no signature of 'ttnn.sofmax' is known.*mean ttnn.softmax"):
        signatures("ttnn.sofmax")
