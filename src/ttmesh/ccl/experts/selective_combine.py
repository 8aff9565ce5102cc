"""selective_reduce_combine: the experts' results, from the memory of the combine cores to the chips of the tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ttmesh.base.cores import CoreCoord, CoreRangeSet
from ttmesh.base.dtypes import Layout, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ccl.experts.expert_dispatch import count_token_bytes, expand_groups
from ttmesh.ccl.experts.expert_tokens import align_words, locate_rows
from ttmesh.ccl.experts.moe_compute import merge_chips
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_groups
from ttmesh.fabric.fabric_config import Topology
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.selective_reduce_combine"
WORD_BYTES, L1_ALIGNMENT = 4, 16


@collective(NAME)
def selective_reduce_combine(
    dense_input_tensor: Tensor,
    dense_activations_tensor: Tensor,
    dense_token_maps_tensor: Tensor,
    dense_token_counts_tensor: Tensor,
    hidden_size: int,
    batch_size: int,
    seq_size: int,
    select_experts_k: int,
    cluster_axis: int,
    topology: Topology,
    num_links: int,
    token_parallel_core_dim: int,
    data_parallel_core_dim: int,
    worker_cores: Sequence[CoreCoord],
    mux_core_range_set: CoreRangeSet,
    memory_config: MemoryConfig | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """[k, own tokens, hidden] on every chip: the results of a token's choices; what nobody computed keeps its values."""
    tensors = [dense_input_tensor, dense_activations_tensor, dense_token_maps_tensor, dense_token_counts_tensor]
    mesh = mesh_of(NAME, tensors)
    check_axis(mesh, cluster_axis)
    tokens = batch_size * seq_size
    workers = token_parallel_core_dim * data_parallel_core_dim
    _check(tensors, tokens, workers, num_links)
    cores = [(core.x, core.y) for core in worker_cores][:workers]
    overlap = sorted({(core.x, core.y) for core in mux_core_range_set.cores()}.intersection(cores))
    wrong = f"mux cores {overlap} are worker cores too"
    require(not overlap, wrong, "different cores", "Choose other mux cores.")
    options = {
        "axis": cluster_axis, "tokens": tokens, "k": select_experts_k, "hidden": hidden_size, "topology": topology,
        "height": token_parallel_core_dim, "width": data_parallel_core_dim, "cores": tuple(cores),
        "memory_config": memory_config or DRAM_MEMORY_CONFIG, "mode": check_common(mesh, None, num_links),
    }  # fmt: skip
    outputs = [] if output_tensor is None else [output_tensor]
    result: Tensor = run(NAME, _decide, [*tensors, *outputs], options, outputs)
    return result


def _check(tensors: list[Tensor], tokens: int, workers: int, num_links: int) -> None:
    dense, activations, maps = tensors[:3]
    rank = len(maps.shape)
    wrong = f"dense_token_maps_tensor must be rank 2 ([experts, per-token-stride]); got rank {rank}"
    require(rank == 2, wrong, "[experts, words]", "Give it these dims with ttnn.reshape.")
    require(num_links > 0, f"num_links must be > 0, got {num_links}", "1 or more", "Change num_links.")
    wrong = f"num_worker_cores ({workers}) must be divisible by num_links ({num_links})"
    require(workers % num_links == 0, wrong, f"a divisor of {workers}", "Change num_links.")
    require(
        activations.shape[-1] // tokens == align_words(2 * maps.shape[0] + 1),
        "The token activations tensor is expected to have aligned 2 * experts_per_device + 1 elements per token",
        f"{align_words(2 * maps.shape[0] + 1)} words per token",
        "Pass what moe_compute or moe_gpt wrote.",
    )
    row = maps.shape[-1]
    require(
        row % (tokens + 1) == 0,
        f"The dense token maps tensor is expected to hold (total_tokens + 1) = {tokens + 1} equally strided token indices "
        f"per expert, but its last dim ({row}) is not a multiple of that",
        f"a multiple of {tokens + 1}",
        "Pass what moe_compute or moe_gpt wrote.",
    )
    require(
        row * WORD_BYTES % L1_ALIGNMENT == 0,
        f"The dense token maps tensor row ({row * WORD_BYTES} bytes) must already be L1 aligned ({L1_ALIGNMENT} bytes); "
        "otherwise the per-expert page padding breaks the kernels' maps indexing",
        f"a multiple of {L1_ALIGNMENT} bytes",
        "Pad its rows.",
    )
    config = dense.memory_config()
    wrong = f"dense_input_tensor has memory layout {config.memory_layout}"
    is_height = config.memory_layout is TensorMemoryLayout.HEIGHT_SHARDED
    require(is_height, wrong, "height shards: the memory of the worker cores", "Shard it over the worker cores.")


def _decide(request: Request) -> Decision:
    groups = find_groups(request, request["axis"])
    tokens, k, hidden, width = (request[name] for name in ("tokens", "k", "hidden", "width"))
    n, dense, experts = groups.group_size, request.tensor.spec, request.tensors[2].shape[0]
    own_tokens, block_rows, columns = tokens // n, tokens // request["height"], hidden // width
    layout = dense.shard_layout
    assert layout is not None, "checked: height shards"
    positions = {(core.x, core.y): i for i, core in enumerate(layout.cores_with_data)}
    missing = sorted(set(request["cores"]) - set(positions))
    wrong = f"worker cores {missing} hold no shard of dense_input_tensor"
    require(not missing, wrong, "cores of its shards", "Pass the cores on which the tensor is sharded.")
    shards = [positions[core] for core in request["cores"]]
    shard = dense.memory_config.shard_spec
    assert shard is not None, "checked: height shards"
    shard_rows = shard.shape[0]
    given = request.outputs[0] if request.outputs else None
    plain = TensorSpec((k, own_tokens, hidden), dense.dtype, Layout.ROW_MAJOR)
    spec = plain.with_memory_config(request["memory_config"]) if given is None else given.spec

    def compute(*lanes: torch.Tensor) -> list[torch.Tensor]:
        memory, activations, maps, counts = (expand_groups(groups, tensor).flatten(0, 1) for tensor in lanes[:4])
        old = expand_groups(groups, lanes[4]).flatten(0, 1) if len(lanes) > 4 else None
        chips = memory.new_zeros(memory.shape[0], k, own_tokens, hidden) if old is None else old.clone()
        traffic = torch.zeros(memory.shape[0] // n, n, n, dtype=torch.long, device="cpu")
        for chip in range(memory.shape[0]):
            group, position = divmod(chip, n)
            rows_of_cores = memory[chip].reshape(-1, shard_rows * memory.shape[-1])
            cores = [rows_of_cores[i][: experts * block_rows * columns] for i in shards]
            blocks = torch.stack(cores).reshape(request["height"], width, experts, block_rows, columns)
            choices = _read_choices(activations[chip].flatten(), tokens, experts)
            lists = maps[chip].reshape(experts, tokens + 1, -1)[:, :, 0]
            for expert, count in enumerate(counts[chip].flatten()[:experts].tolist()):
                for i, (core, row) in enumerate(locate_rows(count, request["height"])):
                    token = int(lists[expert, i])
                    target = token // own_tokens
                    values = blocks[core, :, expert, row].flatten()
                    chips[group * n + target, choices[token][expert], token % own_tokens] = values
                    traffic[group, position, target] += 1
        count_token_bytes(groups, traffic.tolist(), hidden * 2)
        return [merge_chips(groups, list(chips))]

    return Decision((spec,), compute, {}, request.tensor.tensor_topology())


def _read_choices(words: torch.Tensor, tokens: int, experts: int) -> dict[int, list[int]]:
    """Which of its token's choices every local expert is, by token."""
    stride = len(words) // tokens
    rows: dict[int, list[int]] = {}
    for row in words[: len(words) // stride * stride].reshape(-1, stride).tolist():
        rows.setdefault(row[0], row[1 : experts + 1])  # behind a token's own row there may be others with its number
    return rows
