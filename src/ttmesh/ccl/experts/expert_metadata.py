"""all_to_all_dispatch_metadata: sends tokens to the devices of their experts by a table of device ids, with scores."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, DataType, Layout, ShardOrientation, TensorMemoryLayout
from ttmesh.base.errors import require
from ttmesh.ccl.experts.expert_dispatch import count_token_bytes, expand_groups
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
    """Every device gets the tokens of its experts at their positions, and all devices' expert indices and scores.

    Positions of tokens that a device does not get hold zeros.
    """
    tensors = [input_tensor, expert_indices_tensor, expert_scores_tensor, expert_mapping_tensor]
    mesh = mesh_of(NAME, tensors)
    if cluster_axis is not None:
        check_axis(mesh, cluster_axis)
    require(
        drain_sync_tilizer_core is not None or bool(output_tensors),
        "drain_sync_tilizer_core must be provided explicitly OR persistent output tensors must be provided (so drain core "
        "can be found)",
        "drain_sync_tilizer_core=",
        "Pass the core that collects the metadata.",
    )
    require(cluster_axis is not None, "Cluster axis argument required", "an axis of the mesh", "Pass cluster_axis.")
    for name, tensor, dtype in (
        ("Input", input_tensor, DataType.BFLOAT16),
        ("Indices", expert_indices_tensor, DataType.UINT16),
        ("Scores", expert_scores_tensor, DataType.BFLOAT16),
    ):
        require(
            tensor.layout is Layout.ROW_MAJOR,
            f"{name} tensor must be in row major layout",
            "ROW_MAJOR_LAYOUT",
            "Convert it with ttnn.to_layout.",
        )
        require(
            tensor.dtype is dtype,
            f"{name} tensor must be {dtype.name.lower()}",
            dtype.name.lower(),
            "Convert it with ttnn.typecast.",
        )
    shape, index_shape, scores = (tuple(t.shape) for t in tensors[:3])
    require(
        index_shape == scores,
        f"Scores tensor shape {list(scores)} must match indices tensor shape {list(index_shape)}",
        "equal shapes",
        "Pass one score per index.",
    )
    require(
        len(shape) == len(index_shape) == 4 and shape[:-1] == index_shape[:-1],
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
        "Pass an expert's id, or leave shared_expert_ids out.",
    )
    options = {
        "axis": cluster_axis, "shared": tuple(shared_expert_ids or ()), "core": tuple(drain_sync_tilizer_core or (0, 0)),
        "mode": check_common(mesh, None, num_links),
    }  # fmt: skip
    tokens, indices, weights = run(NAME, _decide, tensors, options, output_tensors or ())
    return tokens, indices, weights


def _decide(request: Request) -> Decision:
    groups, shared = find_groups(request, request["axis"]), request["shared"]
    hidden, n = request.tensor.shape[-1], groups.group_size
    total = prod(request.tensor.shape[:-1]) * n
    k = request.tensors[1].shape[-1] + len(shared)

    def compute(
        tokens: torch.Tensor, indices: torch.Tensor, scores: torch.Tensor, mapping: torch.Tensor
    ) -> list[torch.Tensor]:
        all_tokens, experts, weights = (
            expand_groups(groups, lanes).flatten(2, -2) for lanes in (tokens, indices, scores)
        )  # [groups, n, tokens of a chip, ...]
        group_count = all_tokens.shape[0]
        if shared:
            fixed = torch.tensor(shared, dtype=experts.dtype, device=experts.device).expand(*experts.shape[:-1], -1)
            experts = torch.cat([experts, fixed], -1)
            weights = torch.cat([weights, weights.new_ones(fixed.shape)], -1)
        gathered = [groups.lane_groups.merge(lanes.flatten(1, 2)[:, None, None]) for lanes in (experts, weights)]
        if all_tokens.is_meta:
            return [groups.lane_groups.merge(all_tokens.new_empty(group_count, n, 1, total, hidden)), *gathered]
        table = mapping.reshape(-1, *mapping.shape[-2:])[0].long()  # [devices, experts]: each device's row
        devices = groups.lane_groups.device_ids(table.device)
        owner = table[devices[:group_count, :, None, None], experts.long()]  # [groups, n, tokens of a chip, k]
        needed = (owner[:, None] == devices[:group_count, :, None, None, None]).any(
            -1
        )  # [groups, target, origin, tokens]
        sparse_tokens = all_tokens.flatten(1, 2)[:, None] * needed.flatten(2)[..., None]
        count_token_bytes(groups, needed.sum(-1).transpose(1, 2).tolist(), hidden * 2)
        return [groups.lane_groups.merge(sparse_tokens[:, :, None]), *gathered]

    specs: tuple[TensorSpec, ...] = (
        TensorSpec((1, total, hidden), DataType.BFLOAT16, Layout.ROW_MAJOR, memory_config=DRAM_MEMORY_CONFIG),
        _make_core_spec(DataType.UINT16, total, k, request["core"]),
        _make_core_spec(DataType.BFLOAT16, total, k, request["core"]),
    )
    if any(request.outputs):
        output_specs = tuple(output.spec for output in request.outputs if output is not None)
        for name, spec, expected in zip(("sparse output token", "indices", "scores"), output_specs, specs, strict=True):
            require(
                spec.shape == expected.shape and spec.dtype is expected.dtype,
                f"Optional {name} tensor spec does not match",
                f"{list(expected.shape)} in {expected.dtype}",
                "Allocate it with that shape and dtype.",
            )
        specs = output_specs
    return Decision(specs, compute, {}, request.tensor.tensor_topology(), single=False)


def _make_core_spec(dtype: DataType, rows: int, columns: int, core: tuple[int, int]) -> TensorSpec:
    """A spec in the L1 of one core, from which TT-NN's next kernel reads."""
    coord = CoreCoord(*core)
    shard = ShardSpec(CoreRangeSet({CoreRange(coord, coord)}), [rows, columns], ShardOrientation.ROW_MAJOR)
    config = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1, shard)
    return TensorSpec((1, rows, columns), dtype, Layout.ROW_MAJOR, memory_config=config)
