"""What layer norm and RMS norm accept, in TT-NN's order and words."""

from __future__ import annotations

from math import prod

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError, require
from ttmesh.ops.catalogue.checks import require_dtype
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.shard_config import div_up
from ttmesh.tensor.spec.spec_checks import check_shard_tiles
from ttmesh.tensor.spec.tensor_spec import TensorSpec

TILE = 32
FORMATS = (DataType.FLOAT32, DataType.BFLOAT16, DataType.BFLOAT8_B)
TO_TILES, RESHARD = "Convert it with ttnn.to_layout.", "Move it with ttnn.to_memory_config."


def check_norm(call: Call) -> None:
    """Input, residual, weight and bias, shards."""
    x = call["input_tensor"].spec
    check_shard_tiles(call["memory_config"] or x.memory_config, Layout.TILE, None)
    sharded, rows = not x.memory_config.interleaved, x.layout is Layout.ROW_MAJOR
    wrong = (
        "Input tensor must have TILE layout (ROW_MAJOR is only supported for non-sharded tensors), got: "
        "Layout::ROW_MAJOR"
    )
    require(not rows or not sharded, wrong, "TILE layout", TO_TILES)
    wrong = f"ROW_MAJOR input requires W ({x.shape[-1] if x.shape else 1}) to be a multiple of tile width ({TILE})"
    require(not rows or (bool(x.shape) and x.shape[-1] % TILE == 0), wrong, "whole tiles", TO_TILES)
    require_dtype(x, FORMATS, f"Input tensor must be FLOAT32, BFLOAT16, or BFLOAT8_B, got: DataType::{x.dtype.name}")
    _check_residual(call, x)
    check_parameters(call)
    if sharded:
        _check_sharded(call, x)


def _check_residual(call: Call, x: TensorSpec) -> None:
    residual = call["residual_input_tensor"]
    if residual is None:
        return
    other = residual.spec
    wrong = f"Residual tensor must have TILE layout, got: Layout::{other.layout.name}"
    require(other.layout is Layout.TILE, wrong, "TILE layout", TO_TILES)
    wrong = (
        f"Input and residual logical and padded shapes must match, got input: logical={x.shape} padded={x.padded_shape} vs "
        f"residual: logical={other.shape} padded={other.padded_shape}"
    )
    same = tuple(other.shape) == tuple(x.shape) and other.padded_shape == x.padded_shape
    require(same, wrong, "equal shapes", "Reshape the residual.")


def check_parameters(call: Call) -> None:
    """Raise for weights and biases whose width is not the input's."""
    x = call["input_tensor"].spec
    for name, tensor in (("gamma", call["weight"]), ("beta", call["bias"])):
        if tensor is None:
            continue
        spec = tensor.spec
        if spec.layout is Layout.TILE:
            fits = spec.padded_shape[-1] == x.padded_shape[-1] and spec.shape[-1] >= x.shape[-1]
            wrong = f"Input and {name} padded widths must match and {name} logical width must be >= input logical width"
        else:
            fits = spec.padded_shape[-1] == TILE and spec.shape.volume() == x.padded_shape[-1]
            wrong = (
                "Gamma's last padded dim needs to equal tile width and gamma's volume needs to align with last padded "
                "dim of input"
                if name == "gamma"
                else "Beta tensor dimensions must align with input tensor"
            )
        tall = spec.layout is Layout.TILE and fits and len(spec.padded_shape) > 1 and spec.padded_shape[-2] != TILE
        high = f"{name.capitalize()} tensor height must equal tile height ({TILE}), got: {spec.padded_shape[-2:][0]}"
        require(not tall, high, "one row of tiles", "Give one row.")
        if not fits:
            raise ShapeError(
                f"{wrong}. Got input padded shape: {x.padded_shape}, {name} padded shape: {spec.padded_shape}",
                expected=f"{x.shape[-1]} values in {name}",
                fix="Give one value per column, in tiles, or in rows of 32 values.",
            )
    if call["weight"] is not None and call["bias"] is not None and call["weight"].layout is not call["bias"].layout:
        raise MeshError(
            "Gamma and beta must have the same layout!",
            expected="equal layouts",
            fix="Convert one with ttnn.to_layout.",
        )


def _check_sharded(call: Call, x: TensorSpec) -> None:
    held, asked = x.memory_config, call["memory_config"] or x.memory_config
    height = TensorMemoryLayout.HEIGHT_SHARDED
    wrong = "Height sharded inputs are not supported."
    require(held.memory_layout is not height, wrong, "width or block shards", RESHARD)
    sharded = asked.is_sharded() and asked.memory_layout is not height
    wrong = "Sharded inputs require sharded outputs."
    require(sharded, wrong, "a sharded memory_config", "Leave memory_config out.")
    residual = call["residual_input_tensor"]
    if residual is not None:
        other = residual.spec.memory_config
        wrong = "residual tensor b should be sharded if input a is sharded"
        require(other.is_sharded(), wrong, "a sharded residual", RESHARD)
        wrong = "Both a and b should have the same shard spec"
        require(other.shard_spec == held.shard_spec, wrong, "the shards of the input", RESHARD)
        wrong = "Both a and b should have the same memory config"
        require(other == held, wrong, "the memory of the input", RESHARD)
    _check_cores(x)
    wrong = (
        f"Input and output memory layouts must match, got input: TensorMemoryLayout::{held.memory_layout.name} vs output: "
        f"TensorMemoryLayout::{asked.memory_layout.name}"
    )
    require(asked.memory_layout is held.memory_layout, wrong, "the input's memory layout", "Leave memory_config out.")


def _check_cores(x: TensorSpec) -> None:
    """Every core holds a shard, and the last one holds something of the tensor."""
    shards, kind = x.memory_config.shard_spec, x.memory_config.memory_layout
    if shards is None or not x.shape:
        return
    cores, rows, columns = shards.num_cores(), prod(x.padded_shape[:-1]), x.padded_shape[-1]
    height, width = shards.shape
    down, across = div_up(rows, height), div_up(columns, width)
    if kind is TensorMemoryLayout.WIDTH_SHARDED:
        down, across = 1, cores
    wrong = f"Shard layout requires {down}x{across} = {down * across} shards but shard grid has {cores} cores"
    require(down * across == cores, wrong, f"{down * across} cores", RESHARD)
    for side, number, extent, whole in (("height", down, height, rows), ("width", across, width, columns)):
        missing = number * extent - whole
        wrong = (
            f"Shard-padded {side} ({number}x{extent} = {number * extent}) does not align with tensor {side} {whole}: "
            f"trailing pad {missing} must be less than one shard {side} ({extent})"
        )
        require(0 <= missing < extent, wrong, "a core for every shard", RESHARD)
