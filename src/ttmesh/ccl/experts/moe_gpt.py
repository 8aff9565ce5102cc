"""moe_gpt: gpt-oss's experts on the tokens dispatched to a chip, for selective_reduce_combine."""

from __future__ import annotations

import torch

from ttmesh.base.dtypes import BufferType, DataType, Layout, TensorMemoryLayout
from ttmesh.base.errors import MeshError, require
from ttmesh.ccl.experts.expert_modes import MoEActivationFunction
from ttmesh.ccl.experts.expert_tokens import (
    BUFFERS,
    CHUNK,
    align_words,
    fill_core_outputs,
    make_all_cores_spec,
    make_l1_spec,
    write_activations,
    write_token_lists,
)
from ttmesh.ccl.experts.moe_compute import merge_chips, run_chips, view_as_tiles
from ttmesh.ccl.experts.moe_weights import TILE, RingShards
from ttmesh.ccl.planning.collective_call import Decision, Request, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_groups
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.moe_gpt"
BLOCK_WIDTH = 4 * TILE
RING = (
    8,
    8,
    7,
    7,
) * 3  # tiles of 2880 columns that each of twelve cores owns (tt-metal e4f9f0b, moe_gpt_ring_common.h)


@collective(NAME)
def moe_gpt(
    input_tensor: Tensor,
    expert_indices: Tensor,
    expert_scores: Tensor,
    expert_mapping: Tensor,
    w0_w1_tensor: Tensor,
    w2_tensor: Tensor,
    output_height_shard_dim: int = 4,
    output_width_shard_dim: int = 3,
    hidden_size: int = 2880,
    cluster_axis: int | None = None,
) -> list[Tensor]:
    """Tokens per expert, their rows, their lists, and the experts' results in the combine cores (tiles and rows)."""
    tensors = [input_tensor, expert_indices, expert_scores, expert_mapping, w0_w1_tensor, w2_tensor]
    mesh = mesh_of(NAME, tensors)
    check_axis(mesh, cluster_axis)
    _check(mesh, tensors)
    cores = _find_combine_cores(mesh, output_width_shard_dim, output_height_shard_dim)
    options = {
        "layer": 0, "width": output_width_shard_dim, "height": output_height_shard_dim, "hidden": hidden_size,
        "combine": cores, "axis": cluster_axis, "has_bias": w0_w1_tensor.shape[-2] > hidden_size, "skips_equal": True,
        "shards": RingShards(RING, RING), "activation": MoEActivationFunction.SWIGLU, "mode": "local",
    }  # fmt: skip
    rows, *tables = run(NAME, _decide, tensors, options)
    return [*tables, view_as_tiles(rows), rows]


def _check(mesh: MeshDevice, tensors: list[Tensor]) -> None:
    tokens, indices, scores, mapping, w0_w1, w2 = tensors
    banks, experts = mesh.chip.dram_banks, w0_w1.shape[2] if len(w0_w1.shape) == 6 else 0
    for name, tensor, form in (
        ("w0_w1_tensor", w0_w1, "(num_cores, L, E, groups_per_core, K, 4*TILE_SIZE)"),
        ("w2_tensor", w2, "(num_cores, L, E, 2, N, 4*TILE_SIZE)"),
    ):
        shape = tensor.shape
        wrong = f"{name} must have rank 6 {form}, got rank {len(shape)}"
        require(len(shape) == 6, wrong, form, "Prepare it in the order of the banks.")
        wrong = f"{name} dim 0 must equal the number of DRAM-bank-aligned matmul cores ({banks}), got {shape[0]}"
        require(shape[0] == banks, wrong, f"{banks}", "Give it one slice per DRAM bank.")
        if tensor is w0_w1:
            wrong = f"{name} dim 2 (experts_per_device) must be >= 1, got {shape[2]}"
            require(shape[2] >= 1, wrong, "one expert or more", "Pass the weights of an expert.")
        else:
            wrong = f"{name} dim 2 (experts_per_device) must match w0_w1_tensor ({experts}), got {shape[2]}"
            require(shape[2] == experts, wrong, f"{experts}", "Pass the weights of the same experts.")
        wrong = f"{name} dim 5 must be 4*TILE_SIZE ({BLOCK_WIDTH}), got {shape[5]}"
        require(shape[5] == BLOCK_WIDTH, wrong, f"{BLOCK_WIDTH}", "Prepare it in blocks of four tiles.")
    rank = len(tokens.shape)
    wrong = f"input_tensor (sparse buffer) must be at least rank 2, got {rank}"
    require(rank >= 2, wrong, "[tokens, hidden]", "Give it these dims with ttnn.reshape.")
    total = mapping.shape[-1]
    wrong = f"expert_mapping last dim (experts_total={total}) must be >= experts_per_device ({experts})"
    require(total >= experts, wrong, f"{experts} or more", "Pass one column per expert.")
    rank = len(indices.shape)
    require(
        rank >= 2,
        f"expert_indices must be at least rank 2, got {rank}",
        "[tokens, k]",
        "Give it these dims with ttnn.reshape.",
    )
    for name, tensor in (("expert_indices", indices), ("expert_scores", scores)):
        config = tensor.memory_config()
        in_one_core = config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED and config.buffer_type is BufferType.L1
        wrong = f"{name} must be HEIGHT_SHARDED L1 (produced by all_to_all_dispatch_metadata)"
        require(in_one_core, wrong, "height shards in L1", "Dispatch it with all_to_all_dispatch_metadata.")


def _find_combine_cores(mesh: MeshDevice, width: int, height: int) -> tuple[tuple[int, int], ...]:
    """The first rectangle of cores without one that reads a DRAM bank, row by row."""
    grid = mesh.compute_with_storage_grid_size()
    readers = {(core.x, core.y) for core in mesh.get_optimal_dram_bank_to_logical_worker_assignment()}
    for y in range(grid.y - height + 1):
        for x in range(grid.x - width + 1):
            cells = tuple((x + dx, y + dy) for dy in range(height) for dx in range(width))
            if not readers.intersection(cells):
                return cells
    raise MeshError(
        f"Could not find a {width}x{height} combine core range that avoids matmul cores",
        expected=f"a free rectangle on the {grid.x}x{grid.y} grid",
        fix="Use fewer combine cores.",
    )


def _decide(request: Request) -> Decision:
    groups, hidden = find_groups(request, request["axis"]), request["hidden"]
    tokens, experts = request.tensor.shape[0], request.tensors[4].shape[2]
    grid = request.mesh.compute_with_storage_grid_size()
    words, core_count = align_words(experts), grid.x * grid.y
    buffer_rows = tokens // request["height"]
    room = BUFFERS * CHUNK * request["width"]
    require(
        experts * buffer_rows <= room,
        f"{experts} experts with {buffer_rows} tokens each take more than the {room} rows of a combine core",
        f"at most {room // experts * request['height']} tokens",
        "Pass fewer tokens, or raise output_height_shard_dim.",
    )

    def compute(*lanes: torch.Tensor) -> list[torch.Tensor]:
        runs = run_chips(groups, lanes, request, tokens // groups.group_size)
        cores = [y * grid.x + x for x, y in request["combine"]]
        core_rows = [
            fill_core_outputs(list(enumerate(chip.results)), cores, core_count, request["width"], buffer_rows)
            for chip in runs
        ]
        counts = [torch.nn.functional.pad(chip.found.counts, (0, words - experts))[None] for chip in runs]
        activations = [write_activations(chip.found, tokens + 1) for chip in runs]
        lists = [write_token_lists(chip.found) for chip in runs]
        return [merge_chips(groups, chips) for chips in (core_rows, counts, activations, lists)]

    specs = (
        make_all_cores_spec(grid, (BUFFERS, CHUNK, hidden), DataType.BFLOAT16, Layout.ROW_MAJOR),
        make_l1_spec(1, words),
        make_l1_spec(1, (tokens + 1) * align_words(2 * experts + 1)),
        make_l1_spec(experts, (tokens + 1) * 4),
    )
    return Decision(specs, compute, {}, request.tensor.tensor_topology(), single=False)
