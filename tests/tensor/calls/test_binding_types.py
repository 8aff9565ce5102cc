"""Arguments of types that TT-NN's bindings do not take are refused before an operation over a mesh looks at them."""

from __future__ import annotations

import pytest

import ttmesh.ttnn as ttnn
from ttmesh.ops.catalogue.signatures import names, signatures
from ttmesh.tensor.calls.binding_types import find_types, is_taken


@pytest.mark.parametrize(
    ("value", "kind", "taken"),
    [
        (None, "Tensor", False), (None, "Tensor?", True), (-1, "unsigned?", False), (2, "unsigned?", True),
        (-1, "int", True), (1.0, "int", False), (1, "float", True), (1, "bool", False), (True, "bool", True),
        ([1, 2], "[int]", True), ([1], "int|[int]", True),
        (1, "[int]", False), ([None], "[int]", False), ((0, 6), "CoreCoord", True), (3, "CoreCoord", False),
        (ttnn.Topology.Ring, "Topology", True), (ttnn.bfloat16, "Topology", False), ("x", "str", True),
        (3, "any", True),
    ],
)  # fmt: skip
def test_a_type_takes_what_the_bindings_take(value: object, kind: str, *, taken: bool) -> None:
    assert is_taken(value, kind) is taken


def test_every_overload_finds_types_of_its_own_parameters() -> None:
    gather = "ttnn.experimental.all_gather_async"

    found = [find_types(gather, list(signature.parameters)) for signature in signatures(gather)]

    assert ["mesh_device" in types for types in found] == ["mesh_device" in s.parameters for s in signatures(gather)]
    assert find_types("ttnn.add", ["input_tensor_a"])["input_tensor_b"] == "int|float|Tensor"
    assert find_types("ttnn.hypot", ["input_tensor_a"])["input_tensor_b"] == "Tensor"
    assert {"ttnn.all_gather", "ttnn.broadcast"} <= {name for name in names() if find_types(name, ["input_tensor"])}
