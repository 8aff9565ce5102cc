"""Tokens reach the devices of their experts by a table of device ids; indices and scores reach everybody."""

from __future__ import annotations

import pytest
import torch
from ccl_meshes import lanes_of, on, opened, random_lanes

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import DataType, bfloat16

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")

EXPERTS, K, HIDDEN, TOKENS = 16, 3, 32, 2
dispatch = ttnn.experimental.all_to_all_dispatch_metadata


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shared", [None, [5]])
def test_tokens_indices_and_scores_arrive(axis: int, shared: list[int] | None) -> None:
    with opened((2, 4), config=ttnn.FabricConfig.FABRIC_2D) as mesh:
        generator = torch.Generator().manual_seed(0)
        table = (torch.randperm(EXPERTS, generator=generator) % 8).repeat(8, 1)
        table[:, 5] = torch.arange(8)  # every device has a copy of expert 5 of its own
        chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:K] for _ in range(8 * TOKENS)])
        indices = chosen.reshape(2, 4, TOKENS, 1, 1, K).int()
        values, scores = (
            random_lanes((2, 4), (TOKENS, 1, 1, HIDDEN), bfloat16),
            random_lanes((2, 4), (TOKENS, 1, 1, K), bfloat16),
        )

        tokens, everyone, weights = dispatch(
            on(mesh, values, bfloat16), on(mesh, indices, DataType.UINT16), on(mesh, scores, bfloat16),
            on(mesh, table.int()[None, None], DataType.UINT16), cluster_axis=axis, shared_expert_ids=shared,
            drain_sync_tilizer_core=(0, 0),
        )  # fmt: skip

        assert everyone.memory_config().is_sharded()
        for r in range(2):
            for c in range(4):
                line = [(i, c) if axis == 0 else (r, i) for i in range(mesh.shape[axis])]
                for index, (i, j) in enumerate((i, j) for i in range(len(line)) for j in range(TOKENS)):
                    experts = [*indices[line[i]][j, 0, 0].tolist(), *(shared or [])]
                    source = line[i][0] * 4 + line[i][1]
                    wanted = any(int(table[source, expert]) == r * 4 + c for expert in experts)
                    expected = values[line[i]][j, 0, 0] if wanted else torch.zeros(HIDDEN)
                    assert torch.equal(lanes_of(tokens)[r, c, 0, index], expected.bfloat16())
                    assert lanes_of(everyone)[r, c, 0, index].tolist() == experts
                    assert torch.equal(lanes_of(weights)[r, c, 0, index, :K], scores[line[i]][j, 0, 0])
                    assert lanes_of(weights)[r, c, 0, index, K:].eq(1).all()
        assert mesh.traffic.counters.fabric_bytes() > 0


def test_a_table_without_a_row_per_device_is_refused() -> None:
    with opened((1, 2)) as mesh:
        x = on(mesh, random_lanes((1, 2), (TOKENS, 1, 1, HIDDEN), bfloat16), bfloat16)
        indices = on(mesh, torch.zeros(1, 2, TOKENS, 1, 1, K).int(), DataType.UINT16)
        scores = on(mesh, torch.zeros(1, 2, TOKENS, 1, 1, K).bfloat16(), bfloat16)
        table = on(mesh, torch.zeros(1, 1, 3, EXPERTS).int(), DataType.UINT16)

        with pytest.raises(RuntimeError, match=r"first dimension must equal number of devices \(2\), got 3"):
            dispatch(x, indices, scores, table, cluster_axis=1, drain_sync_tilizer_core=(0, 0))
        with pytest.raises(RuntimeError, match="Cluster axis argument required"):
            dispatch(x, indices, scores, table, drain_sync_tilizer_core=(0, 0))
