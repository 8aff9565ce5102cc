"""all_to_all_dispatch_metadata: tokens to the devices of their experts by a table of device ids, with their scores."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ccl.experts.expert_dispatch import members_of, send_counts
from ttmesh.ccl.planning.collective_call import Decision, Request, check_common, collective, mesh_of, run
from ttmesh.ccl.planning.group_plan import check_axis, find_groups
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig, ShardSpec
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor

NAME = "ttnn.experimental.all_to_all_dispatch_metadata"


@collective(NAME)
def all_to_all_dispatch_metadata(
    input_tensor: Tensor,
    expert_indices_tensor: Tensor,
    expert_scores_tensor: Tensor,
    expert_mapping_tensor: Tensor,
    shared_expert_ids: Sequence[int] | None = None,
    cluster_axis: int | None = None,
    output_tensors: Sequence[Tensor] | None = None,
    num_links: int | None = None,
    drain_sync_tilizer_core: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Every device gets the tokens of its experts at their places, and everybody's expert indices and scores.

    Places of tokens that a device does not get hold zeros.
    """
    tensors = [input_tensor, expert_indices_tensor, expert_scores_tensor, expert_mapping_tensor]
    mesh = mesh_of(NAME, tensors)
    require(cluster_axis is not None, "Cluster axis argument required", "an axis of the mesh", "Pass cluster_axis.")
    check_axis(mesh, cluster_axis)
    for what, tensor, dtype in (
        ("Input", input_tensor, DataType.BFLOAT16),
        ("Indices", expert_indices_tensor, DataType.UINT16),
        ("Scores", expert_scores_tensor, DataType.BFLOAT16),
    ):
        require(
            tensor.layout is Layout.ROW_MAJOR,
            f"{what} tensor must be in row major layout",
            "ROW_MAJOR_LAYOUT",
            "Convert it with ttnn.to_layout.",
        )
        require(
            tensor.dtype is dtype,
            f"{what} tensor must be {dtype.name.lower()}",
            dtype.name.lower(),
            "Convert it with ttnn.typecast.",
        )
    shape, chosen, scores = (tuple(t.shape) for t in tensors[:3])
    require(
        chosen == scores,
        f"Scores tensor shape {list(scores)} must match indices tensor shape {list(chosen)}",
        "equal shapes",
        "Pass one score per index.",
    )
    require(
        len(shape) == len(chosen) == 4 and shape[:-1] == chosen[:-1],
        "Input and indices tensor must have the same shape for all dimensions except the last",
        "four dims, equal except for the last",
        "Pass one row of indices per token.",
    )
    table = expert_mapping_tensor.shape
    require(
        len(table) == 2,
        f"Expert mapping tensor must have rank 2 with shape [devices, experts], got rank {len(table)}",
        "[devices, experts]",
        "Reshape it to two dims.",
    )
    require(
        table[0] == mesh.get_num_devices(),
        f"Expert mapping tensor first dimension must equal number of devices ({mesh.get_num_devices()}), got {table[0]}",
        f"{mesh.get_num_devices()} rows",
        "Give the table one row per device.",
    )
    require(
        shared_expert_ids is None or len(shared_expert_ids) > 0,
        "If shared_expert_ids is provided it must not be empty",
        "one id or more",
        "Name an expert, or leave shared_expert_ids out.",
    )
    options = {
        "axis": cluster_axis, "shared": tuple(shared_expert_ids or ()), "core": tuple(drain_sync_tilizer_core or (0, 0)),
        "mode": check_common(mesh, None, num_links),
    }  # fmt: skip
    tokens, indices, weights = run(NAME, _dispatch, tensors, options, output_tensors or ())
    return tokens, indices, weights


def _dispatch(request: Request) -> Decision:
    where, shared = find_groups(request, request["axis"]), request["shared"]
    hidden, n = request.tensor.shape[-1], where.members
    total = prod(request.tensor.shape[:-1]) * n
    k = request.tensors[1].shape[-1] + len(shared)
    devices = torch.tensor(where.arrangement.groups)

    def compute(
        tokens: torch.Tensor, indices: torch.Tensor, scores: torch.Tensor, mapping: torch.Tensor
    ) -> list[torch.Tensor]:
        every, experts, weights = (
            members_of(where, part).flatten(2, -2) for part in (tokens, indices, scores)
        )  # [groups, n, tokens of a member, ...]
        groups = every.shape[0]
        if shared:
            fixed = torch.tensor(shared, dtype=experts.dtype).expand(*experts.shape[:-1], -1)
            experts = torch.cat([experts, fixed], -1)
            weights = torch.cat([weights, weights.new_ones(fixed.shape)], -1)
        gathered = [where.arrangement.spread(part.flatten(1, 2)[:, None, None]) for part in (experts, weights)]
        if every.is_meta:
            return [where.arrangement.spread(every.new_empty(groups, n, 1, total, hidden)), *gathered]
        table = mapping.reshape(-1, *mapping.shape[-2:])[0].long()  # [devices, experts]: as each device sees it
        owner = table[devices[:groups, :, None, None], experts.long()]  # [groups, n, tokens of a member, k]
        wanted = (owner[:, None] == devices[:groups, :, None, None, None]).any(-1)  # [groups, target, origin, tokens]
        placed_tokens = every.flatten(1, 2)[:, None] * wanted.flatten(2)[..., None]
        send_counts(where, wanted.sum(-1).transpose(1, 2).tolist(), hidden * 2)
        return [where.arrangement.spread(placed_tokens[:, :, None]), *gathered]

    specs: tuple[TensorSpec, ...] = (
        TensorSpec((1, total, hidden), DataType.BFLOAT16, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG),
        _on_one_core(DataType.UINT16, total, k, request["core"]),
        _on_one_core(DataType.BFLOAT16, total, k, request["core"]),
    )
    if any(request.outputs):
        given = tuple(output.spec for output in request.outputs if output is not None)
        for what, spec, own in zip(("sparse output token", "indices", "scores"), given, specs, strict=True):
            require(
                spec.shape == own.shape and spec.dtype is own.dtype,
                f"Optional {what} tensor spec does not match",
                f"{list(own.shape)} in {own.dtype}",
                "Allocate it with that shape and dtype.",
            )
        specs = given
    return Decision(specs, compute, {}, request.tensor.tensor_topology(), single=False)


def _on_one_core(dtype: DataType, rows: int, columns: int, core: tuple[int, int]) -> TensorSpec:
    """Where the next kernel of TT-NN reads it: in the L1 of one core."""
    at = CoreCoord(*core)
    shard = ShardSpec(CoreRangeSet({CoreRange(at, at)}), [rows, columns], ShardOrientation.ROW_MAJOR)
    config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, shard)
    return TensorSpec((1, rows, columns), dtype, Layout.ROW_MAJOR, memory_config=config)
