"""Circular buffers of collectives over shards in L1, of those fused with a norm, and of tokens on the way to experts."""

from __future__ import annotations

from math import prod

from ttmesh.ops.buffers.collective_buffers import PACKET
from ttmesh.ops.buffers.pages import (
    BFLOAT16,
    L1_ALIGNMENT,
    TILE,
    align,
    columns,
    element_bytes,
    page_of,
    row_bytes,
    rows,
)
from ttmesh.ops.buffers.reduction_buffers import LARGEST_PART
from ttmesh.tensor.calls.dispatch_factories import ProgramCall
from ttmesh.tensor.calls.program_buffers import buffer_rule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

HEADERS = 768  # of packets, on the cores that feed links
DISPATCH_HEADERS, COMBINE_HEADERS = 96, 9840


def _links(program: ProgramCall) -> int:
    return max(int(program.options.get("num_links") or 1), 1)


@buffer_rule("all_reduce_async", "all_reduce_create_qkv_heads", fused=True)
def buffered_reduce_buffers(program: ProgramCall) -> int:
    """The cores of a link hold its part of the tensor; what arrives is in the given buffer."""
    spec = program.inputs[0]
    tiles = rows(spec) * columns(spec)
    return -(-tiles // _links(program)) * page_of(spec) + HEADERS


@buffer_rule("llama_reduce_scatter", "llama_rs_matmul", "llama_rs_create_heads", fused=True)
def buffered_scatter_buffers(program: ProgramCall) -> int:
    """What goes to the other chips, and twice a packet from each of them."""
    spec, result = program.inputs[0], program.results[0]
    chips = max(prod(spec.shape) // max(prod(result.shape), 1), 1)
    kept, size = max(rows(spec) * columns(spec) // chips, 1), page_of(spec)
    packet = min(max(PACKET // size, 1), kept)
    return HEADERS + ((chips - 1) * -(-kept // _links(program)) + 2 * chips * packet) * size


@buffer_rule("fused_rms_minimal")
def fused_rms_buffers(program: ProgramCall) -> int:
    """A core's shard three times, the sums of all cores, and ten tiles on the way."""
    shards = program.inputs[0].memory_config.shard_spec
    if shards is None:
        return 0
    own = -(-shards.shape[0] // TILE) * -(-shards.shape[1] // TILE)
    return (10 + 3 * own + shards.num_cores()) * BFLOAT16 + HEADERS + 2


def _length(spec: TensorSpec) -> int:
    return spec.shape[-1] if spec.shape else 1


def _aligned_row(spec: TensorSpec) -> int:
    return align(_length(spec) * element_bytes(spec), L1_ALIGNMENT)


def _tokens(spec: TensorSpec) -> int:
    return max(prod(spec.shape[:-1]), 1)


@buffer_rule("all_to_all_dispatch")
def dispatch_tokens_buffers(program: ProgramCall) -> int:
    """Two tokens; the experts of every token, and where each expert is; what all chips of the axis send of it."""
    spec, experts, mapping = (*program.inputs, *[program.inputs[-1]] * 2)[:3]
    tokens, page = _tokens(spec), row_bytes(experts, program.arch)
    chips = max(_tokens(program.results[0]) // tokens, 1)
    tables = _tokens(mapping) * row_bytes(mapping, program.arch) + (1 + chips) * tokens * page
    return 2 * row_bytes(spec, program.arch) + tables + DISPATCH_HEADERS + tokens * _length(mapping)


@buffer_rule("all_to_all_combine")
def combine_tokens_buffers(program: ProgramCall) -> int:
    """A row of every expert of the chip, three rows of tables, and headers."""
    spec, *tables = program.inputs
    local = 1 if program.options.get("local_reduce") or not spec.shape else max(spec.shape[0], 1)
    return COMBINE_HEADERS + local * row_bytes(spec, program.arch) + sum(map(_aligned_row, tables)) + L1_ALIGNMENT


@buffer_rule("moe_routing_remap")
def remap_routing_buffers(program: ProgramCall) -> int:
    """Two rows, and the numbers of the experts."""
    return 2 * row_bytes(program.inputs[0], program.arch) + L1_ALIGNMENT


@buffer_rule("moe_expert_token_remap")
def remap_tokens_buffers(program: ProgramCall) -> int:
    """Rows of both tables, two of the weights of all experts and two of those of the chip."""
    spec, *tables = program.inputs
    kept = _length(program.results[0]) * element_bytes(spec)
    return 2 * _aligned_row(spec) + sum(map(_aligned_row, tables)) + L1_ALIGNMENT + 2 * kept


@buffer_rule("deepseek_moe_fast_reduce_nc")
def reduce_experts_buffers(program: ProgramCall) -> int:
    """Tiles of all experts, twice, a tile of zeros, and two of the result."""
    spec, results = program.inputs[0], program.results
    added = prod(spec.padded_shape) // max(sum(prod(result.padded_shape) for result in results), 1)
    part = max(n for n in range(1, LARGEST_PART + 1) if max(added, 1) % n == 0)
    return 2 * part * page_of(spec) + BFLOAT16 + 2 * page_of(results[0])
