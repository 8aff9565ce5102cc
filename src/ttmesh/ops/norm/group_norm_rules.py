"""What group norm accepts, in TT-NN's order and words."""

from __future__ import annotations

from math import prod
from typing import Any

from ttmesh.base.dtypes import INTEGERS, Arch, Layout, TensorMemoryLayout
from ttmesh.base.errors import ShapeError, require
from ttmesh.ops.norm.group_norm_grids import find_dram_grid, virtual_columns
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
AUTOMATIC = -1  # num_out_blocks: TT-NN chooses


def check_group_norm(call: Call) -> None:
    """Layouts and memory, the shape, the grid and its blocks."""
    x = call["input_tensor"].spec
    _check_in_place(call, x)
    wrong = "Unsupported memory layout: Input tensor cannot be width-sharded."
    wide = x.memory_config.memory_layout is TensorMemoryLayout.WIDTH_SHARDED
    require(not wide, wrong, "rows or blocks in shards", "Move it with ttnn.to_memory_config.")
    _check_shape(x, call["num_groups"])
    in_rows = x.layout is Layout.ROW_MAJOR and not x.memory_config.is_sharded()
    wrong = "group_norm: interleaved (non-sharded) input must be in TILE layout, got ROW_MAJOR."
    on_blackhole = call.mesh.arch() is Arch.BLACKHOLE
    require(not (in_rows and on_blackhole), wrong, "TILE layout", "Convert it with ttnn.to_layout.")
    if x.memory_config.interleaved:
        _check_blocks(call, x)
    if call["inplace"] and not x.memory_config.is_sharded():
        raise ShapeError(
            "inplace groupnorm not supported for unsharded tensors",
            expected="a sharded tensor, or inplace=False",
            fix="Pass inplace=False.",
        )
    _check_operand(call, x)


def _check_in_place(call: Call, x: TensorSpec) -> None:
    if not call["inplace"]:
        return
    wrong = "In-place operation not supported: Tile layout requires non-inplace tensors. (inplace=true)"
    require(x.layout is not Layout.TILE, wrong, "inplace=False", "Pass inplace=False.")
    layout = call["output_layout"]
    wrong = (
        f"In-place operation not allowed: Input and output tensor layouts differ. (input_layout=Layout::{x.layout.name}, "
        f"output_layout=Layout::{layout.name if layout is not None else ''})"
    )
    require(layout is None or layout is x.layout, wrong, "one layout", "Pass inplace=False, or the input's layout.")


def _check_shape(x: TensorSpec, groups: int) -> None:
    wrong = f"Invalid tensor shape: Input tensor must have rank 4. (rank={len(x.shape)})"
    require(len(x.shape) == 4, wrong, "[batch, 1, rows, channels]", "Reshape it to that shape.")
    channels = x.shape[-1]
    wrong = (
        f"Invalid channel configuration: Number of channels ({channels}) must be divisible by the number of groups "
        f"({groups})."
    )
    require(channels % groups == 0, wrong, f"a multiple of {groups} channels", "Choose another num_groups.")
    rows = prod(x.padded_shape[:-1])
    wrong = f"Invalid tensor dimensions: The product of NHW dimensions ({rows}) must be divisible by the tile size ({TILE})."
    require(rows % TILE == 0, wrong, "a multiple of 32", "Pad the rows with ttnn.pad.")


def _check_blocks(call: Call, x: TensorSpec) -> None:
    """The grid of a tensor that is not sharded, and into how many blocks the rows of a core are divided."""
    grid, asked, groups = call["core_grid"], call["num_out_blocks"], call["num_groups"]
    wrong = (
        "group_norm: num_out_blocks cannot be specified when core_grid is auto-selected. Either provide an explicit "
        "core_grid or omit num_out_blocks."
    )
    require(grid is not None or asked is None, wrong, "both or none", "Give core_grid, or leave num_out_blocks out.")
    wrong = (
        f"group_norm: num_out_blocks ({asked}) is invalid. Use -1 to request the auto-heuristic, or an explicit chunk "
        "count in [1, block_h]."
    )
    require(asked is None or asked >= AUTOMATIC, wrong, "-1, or at least 1", "Leave num_out_blocks out.")
    if grid is None:
        return
    samples, channels, tiles = x.padded_shape[0], x.padded_shape[-1], prod(x.padded_shape[:-1]) // TILE
    columns = virtual_columns(grid.x, groups, channels)
    rows = grid.x // columns * grid.y if columns else 0
    if not rows or tiles % rows or (rows >= samples and rows % samples):
        _refuse_grid(call, grid, tiles, channels, rows, columns)
    height = tiles // rows // max(samples // rows, 1)
    wrong = (
        f"num_out_blocks ({asked}) must be in [1, block_h ({height})]. Reduce num_out_blocks or increase input spatial "
        "dimensions."
    )
    whole = asked in (None, AUTOMATIC) or 0 < asked <= height
    require(whole, wrong, f"at most {height} blocks", "Reduce num_out_blocks.")


def _refuse_grid(call: Call, grid: Any, tiles: int, channels: int, rows: int, columns: int) -> None:
    x, groups = call["input_tensor"].spec, call["num_groups"]
    samples = x.padded_shape[0]
    best = find_dram_grid(grid.x, grid.y, channels, groups, tiles * TILE, samples)
    if best is None:
        raise ShapeError(
            "group_norm: Cannot find any valid core grid for the given configuration. Input height in tiles "
            f"(Ht={tiles}) is too small for any grid with W={channels}, num_groups={groups}, num_batches={samples}. "
            f"Computed num_virtual_rows={rows}, num_virtual_cols={columns}. Requested grid was (x={grid.x}, y={grid.y}).",
            expected="sizes that divide over some grid",
            fix="Pad the rows with ttnn.pad.",
        )
    raise ShapeError(
        f"group_norm: Requested core_grid (x={grid.x}, y={grid.y}) is invalid for the input dimensions (Ht={tiles}, "
        f"W={channels}, num_groups={groups}, num_batches={samples}). The grid must satisfy: num_virtual_rows = "
        "(grid_x / num_virtual_cols) * grid_y <= Ht, Ht must be divisible by num_virtual_rows, and num_virtual_rows "
        "must be divisible by num_batches (for uniform multicast groups). Computed "
        f"num_virtual_rows={rows}, num_virtual_cols={columns}. The largest valid grid that fits is "
        f"(x={best.x}, y={best.y}).",
        expected="a grid that divides the tiles",
        fix=f"Pass core_grid=ttnn.CoreGrid(x={best.x}, y={best.y}).",
    )


def _check_operand(call: Call, x: TensorSpec) -> None:
    wrong = f"Input tensor must be BFLOAT16 or FLOAT32, got: DataType::{x.dtype.name}"
    require(x.dtype not in INTEGERS, wrong, "a float format", "Convert it with ttnn.typecast.")
    fix = "Reshape it to that shape."
    require(x.shape[1] == 1, "input tensor shape[1] must be 1!", "[batch, 1, rows, channels]", fix)
    wrong = f"H*W ({x.padded_shape[1]}*{x.padded_shape[2]}) must be a multiple of the tile height ({TILE})"
    require(x.padded_shape[-2] % TILE == 0, wrong, "a multiple of 32", "Pad the rows with ttnn.pad.")
    mask = call["input_mask"]
    wrong = f"Input mask must have TILE layout, got: Layout::{mask.layout.name if mask is not None else ''}"
    require(mask is None or mask.layout is Layout.TILE, wrong, "a mask in tiles", "Convert it with ttnn.to_layout.")
    if call["use_welford"] and call["negative_mask"] is not None:
        raise ShapeError(
            "Negative mask is not supported with use_welford=True",
            expected="negative_mask=None",
            fix="Leave negative_mask or use_welford out.",
        )
    out = call["memory_config"] or DRAM_MEMORY_CONFIG
    wrong = "Only L1 buffers can have an associated circular buffer!"
    separate = x.memory_config.is_sharded() and not call["inplace"]
    require(not separate or out.is_l1(), wrong, "a result in L1", "Pass memory_config=, or inplace=True.")
