"""Tall columns: TT-NN divides them among cores that would have no work, and reduces the parts in a second program."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod

from ttmesh.base.dtypes import BLOCK_FLOATS, FLOATS, DataType, Layout
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE, TALL = 32, 20  # columns of so many tiles are divided
SUMS = ("sum", "mean")
PARTS, REST = "H parts", "H rest"  # the two programs


def count_cores(call: Call) -> int:
    """The cores that a reduction may use."""
    asked = call.arguments.get("sub_core_grids")
    return int(call.mesh.core_grid.num_cores if asked is None else asked.num_cores())


def count_parts(spec: TensorSpec, kind: str, cores: int) -> int:
    """Into how many parts TT-NN divides the columns of a matrix before it reduces them; 1: it does not."""
    exact = spec.dtype not in BLOCK_FLOATS or kind in SUMS
    if spec.memory_config.is_sharded() or spec.dtype not in FLOATS or not exact:
        return 1
    height, width = (-(-n // TILE) for n in spec.shape[-2:])
    return min(height, max(cores // (prod(spec.shape[:-2]) * width), 1)) if height >= TALL else 1


def reduce_parts(
    c: Composition, x: PlannedTensor, made: TensorSpec, parts: int, kind: str, options: tuple[Hashable, ...]
) -> PlannedTensor:
    """Reduce columns in one program, or first their parts, each to a row, and then these."""
    if parts == 1:
        return c.run("reduce", made, x, options=options)
    dtype = DataType.FLOAT32 if kind in SUMS else x.spec.dtype
    memory = made.memory_config if not made.memory_config.is_sharded() else DRAM_MEMORY_CONFIG
    shape = (*x.spec.shape[:-2], parts, x.spec.shape[-1])
    rows = c.run(
        "reduce", TensorSpec(shape, dtype, Layout.ROW_MAJOR, memory_config=memory), x, options=(PARTS, *options)
    )
    result = c.run("reduce", made, rows, options=(REST, *options))
    c.free(rows)
    return result
