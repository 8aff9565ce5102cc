"""What norms after an all-gather accept: by the program that TT-NN runs, one for shards and one for the rest."""

from __future__ import annotations

from ttmesh.base.dtypes import DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.checks import require_dtype, require_layout
from ttmesh.ops.norm.layer_norm_rules import TILE, check_parameters
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.tensor_spec import TensorSpec

WEIGHTS = (DataType.BFLOAT16, DataType.FLOAT32)
RESHAPE, RESHARD = "Reshape it to the shape of the input.", "Move it with ttnn.to_memory_config."


def check_after_gather(call: Call) -> None:
    """layer_norm_post_all_gather and rms_norm_post_all_gather."""
    x = call["input_tensor"].spec
    if x.memory_config.is_sharded():
        _check_sharded(call, x)
        return
    stats = call["stats"].spec
    wrong = f"Stats inner dimension must be divisible by tile_width ({TILE}), got: {stats.padded_shape[-1]}"
    require(stats.padded_shape[-1] % TILE == 0, wrong, "whole tiles", RESHAPE)
    for dim, shown in enumerate(("batch sizes", "dim1", "dim2")):
        for spec in (stats, x):
            rank = len(spec.padded_shape)
            wrong = f"ShapeBase[] index out of range. {dim} not in [-4, {rank})"
            require(dim < rank, wrong, "four dims", RESHAPE)
        ours, theirs = stats.padded_shape[dim], x.padded_shape[dim]
        wrong = f"Stats and input {shown} must match, got stats: {ours} vs input: {theirs}"
        require(ours == theirs, wrong, f"{theirs} in dim {dim}", "Compute the statistics from this input.")
    for name, tensor in (("gamma", call["weight"]), ("beta", call["bias"])):
        if tensor is not None:
            _check_weight(name, tensor.spec, x)


def _check_weight(name: str, spec: TensorSpec, x: TensorSpec) -> None:
    shown = name.capitalize()
    require_dtype(spec, WEIGHTS, f"{shown} tensor must be BFLOAT16 or FLOAT32, got: DataType::{spec.dtype.name}")
    if spec.layout is Layout.TILE:
        wrong = (
            f"Input and {name} last logical and padded dims must match, got input: logical[-1]={x.shape[-1]} "
            f"padded[-1]={x.padded_shape[-1]} vs {name}: logical[-1]={spec.shape[-1]} padded[-1]={spec.padded_shape[-1]}"
        )
        same = x.shape[-1] == spec.shape[-1] and x.padded_shape[-1] == spec.padded_shape[-1]
        require(same, wrong, f"{x.shape[-1]} columns", RESHAPE)
        high = spec.padded_shape[-2]
        wrong = f"{shown} tensor height must equal tile height ({TILE}), got: {high}"
        require(high == TILE, wrong, "one row of tiles", RESHAPE)
        return
    volume = spec.shape.volume()
    wrong = (
        f"{shown} tensor dimensions must align with input tensor. Got {name} padded shape: {spec.padded_shape[-1]}, "
        f"physical volume: {volume}, input padded shape: {x.padded_shape[-1]}, tile_width: {TILE}"
    )
    fits = spec.padded_shape[-1] == TILE and volume // TILE == x.padded_shape[-1] // TILE
    require(fits, wrong, f"[{x.padded_shape[-1] // TILE}, {TILE}]", RESHAPE)


def _check_sharded(call: Call, x: TensorSpec) -> None:
    """The program of layer_norm itself."""
    require_layout(call["input_tensor"], Layout.TILE, "Input tensor must have TILE layout, got: Layout::ROW_MAJOR")
    check_parameters(call)
    asked, height = call["memory_config"] or x.memory_config, TensorMemoryLayout.HEIGHT_SHARDED
    wrong = "Height sharded inputs are not supported."
    require(x.memory_config.memory_layout is not height, wrong, "width or block shards", RESHARD)
    wrong = "Sharded inputs require sharded outputs."
    sharded = asked.is_sharded() and asked.memory_layout is not height
    require(sharded, wrong, "a sharded memory_config", "Leave memory_config out.")
    wrong, fix = "std::get: wrong index for variant", "Pass ttnn.LayerNormShardedMultiCoreProgramConfig."
    require(hasattr(call["program_config"], "block_w"), wrong, "a program config for shards", fix)
    stats, move = call["stats"].spec, "Move the statistics with ttnn.to_memory_config."
    wrong = f"Only activations with batch size = {TILE} are supported"
    require(x.padded_shape[-2] == TILE, wrong, "one row of tiles", RESHAPE)
    require(stats.memory_config.is_sharded(), "Stats must be sharded", "sharded statistics", move)
    require_layout(call["stats"], Layout.TILE, "Only tile layout is supported for stats")
    require_dtype(stats, (DataType.BFLOAT16,), "Only bfloat16 is supported for stats")
