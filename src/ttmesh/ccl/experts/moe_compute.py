"""moe_compute: a chip's experts on the tokens dispatched to it, and the results back on the tokens' chips."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import NamedTuple

import torch

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ccl.collectives.usable_topology import get_usable_topology
from ttmesh.ccl.experts.expert_dispatch import expand_groups
from ttmesh.ccl.experts.expert_modes import MoEActivationFunction
from ttmesh.ccl.experts.expert_tokens import (
    BUFFERS,
    CHUNK,
    ExpertTokens,
    align_words,
    fill_core_outputs,
    find_expert_tokens,
    make_all_cores_spec,
    make_l1_spec,
    run_experts,
    write_activations,
    write_token_lists,
)
from ttmesh.ccl.experts.moe_cores import count_ring_cores, count_width_shards, list_box_cells, select_moe_cores
from ttmesh.ccl.experts.moe_weights import BLOCK_ROWS, TILE, make_ring_shards, unpack_weights
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import ChipGroups, find_groups
from ttmesh.fabric.fabric_config import Topology
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.global_semaphores import GlobalSemaphore
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.moe_compute"
OUTPUT_TOKENS = 32  # tokens per combine core for which there is room


@collective(NAME)
def moe_compute(
    tilize_input_tensor: Tensor,
    tilize_expert_indices_tensor: Tensor,
    tilize_expert_scores_tensor: Tensor,
    tilize_expert_mapping_tensor: Tensor,
    matmul_w0_w1_tensor: Tensor,
    matmul_w2_tensor: Tensor,
    layer_id: int,
    output_height_shard_dim: int,
    intermediate_size: int,
    has_bias: bool = False,
    cluster_axis: int | None = None,
    topology: Topology | None = None,
    num_links: int | None = None,
    mux_core_range_set: CoreRangeSet | None = None,
    output_memory_config: MemoryConfig | None = None,
    optional_output_tensor: Tensor | None = None,
    optional_cross_device_semaphore: GlobalSemaphore | None = None,
    activation_type: MoEActivationFunction | None = None,
    compute_only: bool = False,
    num_shared_experts_per_device: int | None = None,
) -> list[Tensor]:
    """Tokens per expert, their rows, their lists, the experts' results twice (tiles and rows), and the combined ones."""
    tensors = [
        tilize_input_tensor, tilize_expert_indices_tensor, tilize_expert_scores_tensor, tilize_expert_mapping_tensor,
        matmul_w0_w1_tensor, matmul_w2_tensor,
    ]  # fmt: skip
    mesh = mesh_of(NAME, tensors)
    fabric_options = {
        "topology": topology, "num_links": num_links, "mux_core_range_set": mux_core_range_set,
        "optional_cross_device_semaphore": optional_cross_device_semaphore,
    }  # fmt: skip
    _check_path(mesh, cluster_axis, fabric_options, optional_output_tensor, compute_only=compute_only)
    if cluster_axis is not None:
        usable = get_usable_topology(tilize_input_tensor, topology, cluster_axis)
        require(
            usable in (Topology.Linear, Topology.Ring),
            f"moe_compute: combine kernel only supports Topology::Linear or Topology::Ring, got {usable}. If the fabric "
            "default is Torus/Mesh, pass topology=ttnn.Topology.Linear or ttnn.Topology.Ring explicitly to "
            "ttnn.experimental.moe_compute.",
            "Linear or Ring",
            "Pass topology.",
        )
    hidden_size, ring = tilize_input_tensor.shape[-1], count_ring_cores(mesh)
    width = count_width_shards(hidden_size, ring)
    cores = select_moe_cores(mesh, output_height_shard_dim * width, hidden_size, mux_core_range_set)
    _check_tensors(tensors, has_bias=has_bias)
    _check_sizes(tensors, output_height_shard_dim * width, intermediate_size, ring, num_shared_experts_per_device or 0)
    options = {
        "layer": layer_id, "width": width, "combine": cores.combine, "box": list_box_cells(cores),
        "intermediate": intermediate_size, "has_bias": has_bias, "axis": cluster_axis, "compute_only": compute_only,
        "activation": activation_type or MoEActivationFunction.SILU,
        "memory_config": output_memory_config or DRAM_MEMORY_CONFIG, "reads_output": optional_output_tensor is not None,
        "mode": check_common(mesh, None, num_links) if cluster_axis is not None else "local",
    }  # fmt: skip
    outputs: list[Tensor | None] = []
    if optional_output_tensor is not None:
        tensors.append(optional_output_tensor)  # what no expert writes keeps its values
        outputs = [None, optional_output_tensor]
    rows, *others = run(NAME, _decide, tensors, options, outputs)
    combined = [] if compute_only else [others.pop(0)]
    return [*others, view_as_tiles(rows), rows, *combined]


def view_as_tiles(rows: Tensor) -> Tensor:
    """The same memory seen as tiles, as TT-NN's matmul cores use it."""
    mesh, spec = rows.device(), rows.spec
    assert mesh is not None, "the results of a device operation"
    tiles = TensorSpec(spec.shape, spec.dtype, Layout.TILE, memory_config=spec.memory_config)
    return Tensor.on_device(kind_of(tiles, rows.tensor_topology(), rows.kind.presence), rows.buffer, mesh)


def _check_path(
    mesh: MeshDevice,
    axis: int | None,
    fabric_options: Mapping[str, object],
    output: Tensor | None,
    *,
    compute_only: bool,
) -> None:
    """Which options go together: none of the fabric's without an axis, no output without a combine."""
    given: Mapping[str, object]
    if compute_only:
        given = {"cluster_axis": axis, **fabric_options, "optional_output_tensor": output}
        form = "compute_only=true"
    elif axis is None:
        require(
            mesh.get_num_devices() == 1,
            "moe_compute(compute_only=false, cluster_axis=None) is only supported on a 1x1 mesh, got "
            f"num_devices={mesh.get_num_devices()}. Pass cluster_axis for multi-device fused compute+combine.",
            "one device or an axis",
            "Pass cluster_axis.",
        )
        given, form = fabric_options, "cluster_axis=None"
    else:
        require(axis < 2, "cluster_axis must be 0 or 1", "0 or 1", "Choose an axis of the mesh.")
        return
    for name, value in given.items():
        wrong = f"moe_compute({form}) requires {name} to be std::nullopt"
        require(value is None, wrong, "None", f"Leave {name} out.")


def _check_tensors(tensors: list[Tensor], *, has_bias: bool) -> None:
    tokens, indices = tensors[:2]
    layout = "Input tensor must be in row major layout"
    require(tokens.layout is Layout.ROW_MAJOR, layout, "ROW_MAJOR_LAYOUT", "Convert it with ttnn.to_layout.")
    is_bfloat16 = tokens.dtype is DataType.BFLOAT16
    require(is_bfloat16, "Input tensor must be bfloat16", "bfloat16", "Convert it with ttnn.typecast.")
    is_uint16 = indices.dtype is DataType.UINT16
    require(is_uint16, "Indices tensor must be uint16", "uint16", "Convert it with ttnn.typecast.")
    ranks = (
        ("tilize_input_tensor", 3, "rank >= 3 ([..., tokens, hidden])"),
        ("tilize_expert_indices_tensor", 2, "rank >= 2 ([..., tokens, K])"),
        ("tilize_expert_scores_tensor", 2, "rank >= 2 ([..., tokens, K])"),
        ("tilize_expert_mapping_tensor", 2, "rank 2 ([num_devices, experts])"),
        ("matmul_w0_w1_tensor", 6, "rank 6 ([num_cores, L, E, groups_per_core, K, 4*TILE_SIZE])"),
        ("matmul_w2_tensor", 6, "rank 6 ([num_cores, L, E, groups_per_core, N, 4*TILE_SIZE])"),
    )
    for (name, rank, form), tensor in zip(ranks, tensors, strict=True):
        found = len(tensor.shape)
        fits = found >= rank if ">=" in form else found == rank
        require(fits, f"{name} must be {form}; got rank {found}", form, "Give it these dims with ttnn.reshape.")
    if not has_bias:
        return
    rows = BLOCK_ROWS * TILE
    for name, letter, tensor in (("w0_w1", "K", tensors[4]), ("w2", "N", tensors[5])):
        extent = tensor.shape[-2]
        require(
            extent % rows == 0,
            f"matmul_{name}_tensor {letter}-dimension ({extent}) must be a multiple of {rows} elements (14 tiles * {TILE} "
            f"rows/tile) when has_bias=True. Use moe_compute_utils.prepare_{name}_tensor_with_bias() to prepare the tensor.",
            f"a multiple of {rows}",
            "Pad its rows with the bias.",
        )


def _check_sizes(tensors: list[Tensor], combine_cores: int, intermediate_size: int, ring: int, shared: int) -> None:
    shape = tensors[0].shape
    tokens, hidden_size = shape[0] * shape[1], shape[-1]
    most = OUTPUT_TOKENS * combine_cores
    wrong = f"Too many tokens in input, got: {tokens} but expected max: {most}"
    require(most >= tokens, wrong, f"at most {most} tokens", "Raise output_height_shard_dim or pass fewer tokens.")
    for name, size in (("hidden_size", hidden_size), ("intermediate_size", intermediate_size)):
        wrong = f"{name} ({size}) must be a positive multiple of {TILE} (TILE_SIZE)"
        require(size > 0 and size % TILE == 0, wrong, f"a multiple of {TILE}", "Pad it to whole tiles.")
    inner = intermediate_size // TILE
    require(
        inner >= ring,
        f"intermediate_size ({intermediate_size}) must yield at least 1 tile per ring core ({inner} tiles < {ring} cores)",
        f"{ring * TILE} or more",
        "Use a larger intermediate_size.",
    )
    experts = tensors[4].shape[2]
    wrong = f"num_shared_experts_per_device ({shared}) must be <= experts_per_device ({experts})"
    require(shared <= experts, wrong, f"at most {experts}", "Lower num_shared_experts_per_device.")


class _ChipRun(NamedTuple):
    """What one chip found and computed."""

    found: ExpertTokens
    results: list[torch.Tensor]


def _decide(request: Request) -> Decision:
    groups = find_groups(request, request["axis"])
    shape, weights = request.tensor.shape, request.tensors[4].shape
    tokens, hidden, experts = shape[0] * shape[1], shape[-1], weights[2]
    k, grid = request.tensors[1].shape[-1], request.mesh.compute_with_storage_grid_size()
    words, core_count = align_words(experts), grid.x * grid.y
    own_tokens = tokens // groups.group_size
    specs = [make_all_cores_spec(grid, (BUFFERS, CHUNK, hidden), DataType.BFLOAT16, Layout.ROW_MAJOR)]
    if not request["compute_only"]:
        plain = TensorSpec((k, own_tokens, hidden), DataType.BFLOAT16, Layout.ROW_MAJOR)
        given = request.outputs[1] if request.outputs else None
        specs.append(plain.with_memory_config(request["memory_config"]) if given is None else given.spec)
    specs += [
        make_all_cores_spec(grid, (words,), DataType.UINT32, Layout.ROW_MAJOR),
        make_l1_spec(1, tokens * align_words(2 * experts + 1)),
        make_l1_spec(experts, (tokens + 1) * 4),
    ]

    def compute(*lanes: torch.Tensor) -> list[torch.Tensor]:
        runs = run_chips(groups, lanes[:6], request, own_tokens)
        cores = [y * grid.x + x for x, y in request["combine"]]
        box = [y * grid.x + x for x, y in request["box"]]
        rows_per_buffer = OUTPUT_TOKENS * request["width"]
        core_rows, counts, activations, lists = [], [], [], []
        for chip in runs:
            last = list(enumerate(chip.results))[-BUFFERS:]
            kept = [(expert % BUFFERS, rows) for expert, rows in last]
            core_rows.append(fill_core_outputs(kept, cores, core_count, request["width"], rows_per_buffer))
            table = torch.zeros((core_count, words), dtype=torch.long, device=chip.found.choice.device)
            table[box, :experts] = chip.found.counts
            counts.append(table)
            activations.append(write_activations(chip.found, tokens))
            lists.append(write_token_lists(chip.found))
        results = [core_rows, counts, activations, lists]
        if not request["compute_only"]:
            old = None if len(lanes) == 6 else expand_groups(groups, lanes[6]).flatten(0, 1)
            results.insert(1, combine_results(groups, runs, k, own_tokens, old))
        return [merge_chips(groups, lanes_of_chips) for lanes_of_chips in results]

    return Decision(tuple(specs), compute, {}, request.tensor.tensor_topology(), single=False)


def merge_chips(groups: ChipGroups, chips: list[torch.Tensor]) -> torch.Tensor:
    """Lanes of the mesh from the values of every chip, group by group."""
    stacked = torch.stack(chips)
    return groups.lane_groups.merge(stacked.reshape(-1, groups.group_size, *stacked.shape[1:]))


def run_chips(groups: ChipGroups, lanes: tuple[torch.Tensor, ...], request: Request, own_tokens: int) -> list[_ChipRun]:
    """Every chip's experts on its tokens, group by group."""
    tokens, indices, scores, mapping, w0_w1, w2 = (expand_groups(groups, tensor) for tensor in lanes)
    hidden, experts = tokens.shape[-1], w0_w1.shape[4]
    shards = request["shards"] or make_ring_shards(hidden, request["intermediate"], count_ring_cores(request.mesh))
    ids = groups.lane_groups.device_ids(tokens.device)
    runs, unpacked, known = [], None, None
    for group in range(tokens.shape[0]):
        sources = ids[group].repeat_interleave(own_tokens)
        for chip in range(groups.group_size):
            chosen, weight = (x[group, chip].reshape(prod(x.shape[2:-1]), -1) for x in (indices, scores))
            if request["skips_equal"] and chosen.shape[1] > 1:
                # Positions that were not dispatched hold zeros: all choices are the same expert.
                chosen = chosen.long().masked_fill((chosen == chosen[:, :1]).all(1, keepdim=True), -1)
            found = _find(chosen, weight, mapping[group, chip], int(ids[group, chip]), sources, experts)
            place = (w0_w1[group, chip].data_ptr(), w2[group, chip].data_ptr())
            if unpacked is None or place != known:
                unpacked, known = (
                    unpack_weights(
                        w0_w1[group, chip],
                        w2[group, chip],
                        request["layer"],
                        hidden,
                        shards,
                        has_bias=request["has_bias"],
                    ),
                    place,
                )
            rows = tokens[group, chip].reshape(-1, hidden)
            results = run_experts(rows, found, unpacked, request["activation"])
            runs.append(_ChipRun(found, [result.bfloat16() for result in results]))
    return runs


def _find(
    chosen: torch.Tensor,
    scores: torch.Tensor,
    mapping: torch.Tensor,
    device_id: int,
    sources: torch.Tensor,
    experts: int,
) -> ExpertTokens:
    """The tokens of a chip's experts; a choice of -1 is nobody's."""
    table = torch.cat([mapping.long(), torch.full_like(mapping[:, :1], 0).long() - 1], 1)  # column -1: no device
    return find_expert_tokens(chosen.long() % table.shape[1], scores, table, device_id, sources, experts)


def combine_results(
    groups: ChipGroups, runs: list[_ChipRun], k: int, own_tokens: int, old: torch.Tensor | None
) -> list[torch.Tensor]:
    """[k, own tokens, hidden] of every chip: each choice's result, from the chip of the group that has the expert."""
    n = groups.group_size
    sample = runs[0].results[0]
    combined = []
    for first in range(0, len(runs), n):
        group = sample.new_zeros(n, k, own_tokens, sample.shape[-1])
        if old is not None:
            group.copy_(old[first : first + n])
        for chip in runs[first : first + n]:
            for expert, rows in enumerate(chip.results):
                active = chip.found.selected[:, expert].nonzero()[:, 0]
                group[active // own_tokens, chip.found.choice[active, expert], active % own_tokens] = rows
        combined += list(group)
    return combined
