"""No operation takes a parameter and says nothing about it."""

from __future__ import annotations

import gc

import pytest
import torch

from ttmesh import ttnn
from ttmesh.ops.catalogue import families
from ttmesh.ops.catalogue.parameter_audit import collect_strings, find_unaccounted_parameters, format_no_effect_page
from ttmesh.ops.catalogue.parameter_tags import PER_OPERATION
from ttmesh.tensor.calls.operation import Operation

CATALOGUE = families.load()
NOT_YET = {"ttnn.sparse_matmul"}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_parameter_is_used_checked_or_said_to_have_no_effect(name: str) -> None:
    assert find_unaccounted_parameters(CATALOGUE[name]) == []


def test_tags_name_operations_that_exist() -> None:
    assert {name for name in PER_OPERATION if name not in CATALOGUE} <= NOT_YET


def test_the_page_gives_every_reason() -> None:
    text = format_no_effect_page(CATALOGUE.values())

    assert "`compute_kernel_config`" in text
    assert "math_fidelity" in text
    assert "`sub_core_grids`" in text


# Their checks look at the types of these arguments only, which are part of the key.
TYPES_ONLY = {
    "ttnn.where",
    "ttnn.lerp", "ttnn.clamp", "ttnn.clip", "ttnn.quantize", "ttnn.dequantize", "ttnn.requantize", "ttnn.multiply",
    "ttnn.multiply_", "ttnn.div", "ttnn.divide_", "ttnn.scale_mask_softmax", "ttnn.scale_mask_softmax_in_place",
    "ttnn.scale_causal_mask_hw_dims_softmax_in_place",
}  # fmt: skip


def test_checks_of_values_that_no_key_holds_are_asked_at_every_call() -> None:
    gc.unfreeze()  # objects of modules are hidden from it
    operations = [
        thing for thing in gc.get_objects() if type(thing) is Operation
    ]  # operations of composites have no list
    gc.freeze()
    wanted = [operation for operation in operations if collect_strings(operation.check) & operation.runtime]

    asked = {operation.name for operation in wanted if operation.recheck}

    assert {operation.name for operation in wanted} - asked <= TYPES_ONLY
    assert "ttnn.experimental.dropout" in asked


def test_a_wrong_value_is_refused_after_a_right_one() -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        x = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        ttnn.polygamma(x, 2)
        ttnn.experimental.dropout(x, 0.5, 2.0, 1)

        cache = ttnn.zeros((1, 1, 64, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        token = ttnn.zeros((1, 1, 1, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
        ttnn.update_cache(cache, token, 5)

        with pytest.raises(RuntimeError, match=r"Update idx \(64\) must be within cache length \(64\)"):
            ttnn.update_cache(cache, token, 64)
        with pytest.raises(RuntimeError, match=r"polygamma order must be in range \[1, 11\], got 50"):
            ttnn.polygamma(x, 50)
        with pytest.raises(RuntimeError, match=r"probability must be between 0 and 1, got 7\.0"):
            ttnn.experimental.dropout(x, 7.0, 2.0, 1)
        del x, cache, token


def test_addmm_gives_the_tile_that_was_asked_for() -> None:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as mesh:
        a = ttnn.from_torch(torch.ones(32, 32), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)

        made = ttnn.addmm(a, a, a, output_tile=ttnn.Tile((16, 32)))

        assert made.get_tile() == ttnn.Tile((16, 32))
        assert torch.equal(ttnn.to_torch(made), torch.full((32, 32), 33.0, dtype=torch.bfloat16))
        del a, made
