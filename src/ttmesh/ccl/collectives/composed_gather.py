"""all_gather as TT-NN composes it where pages would have to change on their way: broadcast, then joined."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.ccl.collectives.collective_semaphores import brings_semaphores, compile_before_refusal
from ttmesh.ccl.collectives.collective_stages import (
    TILE,
    Composed,
    list_broadcast_axes,
    run_all_broadcast,
    run_all_gather,
)
from ttmesh.ccl.planning.collective_call import Request
from ttmesh.ops.stages.concat_stages import concat
from ttmesh.ops.stages.movement_stages import typecast
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.shard_config import round_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec

NOC_WRITE_BYTES = 16


def gather_spec(request: Request, dim: int, shape: Sequence[int]) -> TensorSpec:
    """The result's spec; where shards are joined, TT-NN forgets an interleaved memory config that was asked for."""
    if request.outputs:
        return request.tensor.spec if brings_semaphores(request) else replace(request, outputs=()).result_spec(shape)
    if not is_composed_gather(request, dim, shape):
        return request.result_spec(shape)
    held, asked = request.tensor.spec, request["memory_config"]
    config = _check_config(held.memory_config, asked)
    plain = TensorSpec(shape, held.dtype, held.layout, memory_config=DRAM_MEMORY_CONFIG)
    return plain.with_memory_config(config) if config.is_sharded() else plain


def is_composed_gather(request: Request, dim: int, shape: Sequence[int]) -> bool:
    """TT-NN's rule: its own program writes whole pages only, as they are."""
    held = request.tensor.spec
    if request["fused"]:
        return False
    if held.shape[dim] != held.padded_shape[dim - len(held.shape)]:
        return True
    if brings_semaphores(request):
        return held.layout is Layout.ROW_MAJOR
    spec = request.result_spec(shape)
    padded = list(held.padded_shape)
    padded[dim - len(held.shape)] *= shape[dim] // max(1, held.shape[dim])
    if list(spec.padded_shape) != padded:
        return True
    banks = request.mesh.heap.map.banks
    own, made = held.page_size_bytes, spec.page_size_bytes
    if not own or not made or max(own, made) % min(own, made):
        return True
    aligned = round_up(own, banks[held.buffer_type].page_alignment)
    if own != made and own != aligned:
        return True
    if own > made and made % NOC_WRITE_BYTES:
        return True
    return own <= made and round_up(made, banks[spec.buffer_type].page_alignment) < aligned


def is_joined_inside_tiles(spec: TensorSpec, dim: int) -> bool:
    """Whether bfloat4_b, which TT-NN does not widen, would have to leave its tiles."""
    return spec.dtype is DataType.BFLOAT4_B and dim >= len(spec.shape) - 2 and spec.shape[dim] % TILE != 0


def refuse_block_floats(request: Request, n: int) -> None:
    """Raise TT-NN's error for them, which comes after the broadcast."""
    c, spec = Composition(), request.tensor.spec
    if not spec.memory_config.is_sharded():
        run_all_broadcast(c, request, PlannedTensor(spec), spec, list_broadcast_axes(request, n))
    compile_before_refusal(request, c)
    raise MeshError(
        "Only TILE layout is supported for BFLOAT8_B dtype!",
        expected="another format than bfloat4_b where shards do not fill tiles",
        fix="Convert it with ttnn.typecast first.",
    )


def _check_config(held: MemoryConfig, asked: MemoryConfig | None) -> MemoryConfig:
    if asked is None and held.is_sharded():
        raise ShapeError(
            "If input memory config is sharded, then output memory config must be provided. Defaulting the output memory "
            "config to the input sharded memory config will break the op as the input and output shapes are different.",
            expected="memory_config for shards that are joined",
            fix="Pass memory_config.",
        )
    return held if asked is None else asked


def all_gather_stages(request: Request, dim: int, spec: TensorSpec, n: int) -> Composed:
    """One program, or what TT-NN composes."""
    c, x = Composition(), PlannedTensor(request.tensor.spec)
    if request["fused"] == "inside":
        return c, [c.allocate(spec)]
    if request.outputs or not is_composed_gather(request, dim, spec.shape):
        return c, [run_all_gather(c, request, x, dim, spec)]
    return c, [c.view(join_broadcast(c, request, x, dim, n, request["memory_config"]), spec)]


def join_broadcast(
    c: Composition, request: Request, x: PlannedTensor, dim: int, n: int, asked: MemoryConfig | None
) -> PlannedTensor:
    """Every chip's tensor on all chips, joined in DRAM; shards leave their cores first, block floats are widened."""
    source, spec = x, x.spec
    config = _check_config(spec.memory_config, asked)
    if spec.memory_config.is_sharded():
        working = DRAM_MEMORY_CONFIG if config.is_sharded() else config
        source = c.run("sharded_to_interleaved", spec.with_memory_config(working), x)
    ragged = spec.layout is Layout.TILE and any(extent % TILE for extent in spec.shape[-2:])
    widens = ragged and spec.dtype is DataType.BFLOAT8_B
    if widens:
        wide = typecast(c, source, DataType.BFLOAT16)
        if source is not x:
            c.free(source)
        source = wide
    parts = run_all_broadcast(c, request, PlannedTensor(source.spec), source.spec, list_broadcast_axes(request, n))
    made = concat(c, parts, dim - len(spec.shape), DRAM_MEMORY_CONFIG)
    if widens:
        made = c.replace(made, typecast(c, made, spec.dtype))
    if config.is_sharded() and asked is not None:
        made = c.replace(made, c.run("interleaved_to_sharded", made.spec.with_memory_config(config), made))
    for part in parts:
        c.free(part)
    if source is not x:
        c.free(source)
    return made
