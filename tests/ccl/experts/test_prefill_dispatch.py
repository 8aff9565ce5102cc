"""Tokens of a prefill reach their experts' regions, and the results come back to the tokens' own places."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import ttmesh.ttnn as ttnn
from ttmesh.ops.goldens.mixture_of_experts import offset_cumsum

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")

ROWS, COLUMNS = 2, 4  # devices of a group, groups
EXPERTS, PER_CHIP, K, TOKENS, HIDDEN, CAPACITY = 16, 2, 2, 48, 64, 256
prefill = ttnn.experimental.deepseek_prefill


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    opened = ttnn.open_mesh_device(ttnn.MeshShape(ROWS, COLUMNS))
    yield opened
    ttnn.close_mesh_device(opened)
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


def put(mesh: Any, values: torch.Tensor, dims: tuple[int | None, int | None], dtype: Any) -> Any:
    mapper = ttnn.ShardTensor2dMesh(mesh, mesh_shape=(ROWS, COLUMNS), dims=dims)
    return ttnn.from_torch(values, dtype=dtype, layout=ttnn.ROW_MAJOR_LAYOUT, device=mesh, mesh_mapper=mapper)


def read(tensor: Any) -> torch.Tensor:
    """[rows, columns, *local]."""
    shards = [ttnn.to_torch(shard) for shard in ttnn.get_device_tensors(tensor)]
    return torch.stack(shards).reshape(ROWS, COLUMNS, *shards[0].shape)


def make_table() -> torch.Tensor:
    """The device of every expert in every group, [groups, experts + 1]; experts are numbered group by group."""
    table = torch.full((COLUMNS, EXPERTS + 1), -1)
    for expert in range(EXPERTS):
        table[expert // (PER_CHIP * ROWS), expert] = expert // PER_CHIP % ROWS
    return table


def draw_choices() -> torch.Tensor:
    """[rows, tokens, k]: two different experts per token; every group sees all tokens of a row."""
    generator = torch.Generator().manual_seed(3)
    return torch.stack([torch.randperm(EXPERTS, generator=generator)[:K] for _ in range(ROWS * TOKENS)]).reshape(
        ROWS, TOKENS, K
    )


def count_choices(choices: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.bincount(choices[row].flatten(), minlength=EXPERTS) for row in range(ROWS)])


def send(mesh: Any, choices: torch.Tensor, tokens: torch.Tensor, **options: Any) -> tuple[Any, ...]:
    counts = put(mesh, count_choices(choices), (0, None), ttnn.uint32)
    offsets, totals, regions, everything = prefill.offset_cumsum(counts, 0, 1, PER_CHIP, ttnn.DRAM_MEMORY_CONFIG)
    buffer, metadata = prefill.dispatch(
        put(mesh, tokens[:, None], (0, None), ttnn.bfloat16),
        put(mesh, choices[:, None], (0, None), ttnn.uint16),
        offsets,
        put(mesh, make_table(), (None, 0), ttnn.int32),
        dispatch_group_size=ROWS,
        experts_per_chip=PER_CHIP,
        num_routed_experts=EXPERTS,
        num_experts_per_tok=K,
        metadata_len=3,
        max_dispatch_buffer_token_size=options.pop("capacity", CAPACITY),
        **options,
    )
    return buffer, metadata, totals, regions, offsets, everything


def draw_tokens() -> torch.Tensor:
    return torch.randn(ROWS, TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1)).bfloat16()


def test_offsets_are_the_sums_of_earlier_devices_and_regions_begin_at_tiles(mesh: Any) -> None:
    choices = draw_choices()

    _, _, totals, regions, offsets, everything = send(mesh, choices, draw_tokens())

    expected = offset_cumsum(count_choices(choices), 0, 1, PER_CHIP)
    for row in range(ROWS):
        assert torch.equal(read(offsets)[row, 2].long(), expected[0][row : row + 1])
    assert torch.equal(read(totals)[0, 0].long(), expected[1])
    assert torch.equal(read(regions)[1, 3].long(), expected[2])
    assert torch.equal(read(everything)[1, 1].long(), expected[3])


def test_every_token_lies_in_its_experts_region_with_its_origin(mesh: Any) -> None:
    choices, tokens, table = draw_choices(), draw_tokens(), make_table()

    buffer, metadata, _, _, offsets, _ = send(mesh, choices, tokens)

    held, origins, next_place = read(buffer), read(metadata), read(offsets).long()
    for row in range(ROWS):
        for token in range(TOKENS):
            for choice in range(K):
                expert = int(choices[row, token, choice])
                group = expert // (PER_CHIP * ROWS)
                chip = int(table[group, expert])
                place = int(next_place[row, group, 0, expert])
                next_place[row, group, 0, expert] += 1
                assert torch.equal(held[chip, group, 0, 0, place], tokens[row, token])
                assert origins[chip, group, 0, 0, place].tolist() == [row * COLUMNS + group, token, choice]


def test_combine_puts_every_result_at_its_tokens_choice(mesh: Any) -> None:
    choices, tokens = draw_choices(), draw_tokens()
    buffer, metadata, totals, regions, _, _ = send(mesh, choices, tokens)
    counts, starts = (ttnn.reshape(tensor, (1, 1, EXPERTS)) for tensor in (totals, regions))

    out = prefill.combine(
        buffer, metadata, counts, starts, dispatch_group_size=ROWS, experts_per_chip=PER_CHIP, num_experts_per_tok=K,
        seq_len_per_chip=TOKENS,
    )  # fmt: skip

    assert tuple(out.shape) == (1, 1, TOKENS, K, HIDDEN)
    back = read(out)[:, :, 0, 0]  # [rows, groups, tokens, k, hidden]
    group = choices // (PER_CHIP * ROWS)
    for g in range(COLUMNS):
        expected = torch.where((group == g)[..., None], tokens[:, :, None].expand(-1, -1, K, -1), 0)
        assert torch.equal(back[:, g], expected)


def test_padding_and_full_buffers_drop_tokens(mesh: Any) -> None:
    choices, tokens = draw_choices(), draw_tokens()
    real = put(mesh, torch.tensor([[[5, 0]], [[7, 1]]]), (0, None), ttnn.uint32)

    _, metadata, *_ = send(mesh, choices, tokens, padding_config=real)
    small, *_ = send(mesh, choices, tokens, capacity=8)

    kept = {tuple(fields) for fields in read(metadata).reshape(-1, 3).tolist()} - {(0, 0, 0)}
    assert {token for device, token, _ in kept if device < COLUMNS} <= set(range(5))
    assert {token for device, token, _ in kept if device >= COLUMNS} <= set(range(TOKENS - 7, TOKENS))
    assert tuple(small.shape) == (1, 1, 8, HIDDEN)


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 128), (96, 200), (160, 161), (64, 64)])
def test_padding_config_counts_the_real_tokens_of_a_rotated_chunk(mesh: Any, start: int, end: int) -> None:
    per_chip = 32
    config = put(mesh, torch.zeros(COLUMNS, 2, dtype=torch.int64), (None, 0), ttnn.uint32)
    ends = [put(mesh, torch.full((1, 1, 1, 1), value), (None, None), ttnn.uint32) for value in (start, end)]

    result = prefill.moe_padding_config(config, *ends, per_chip, 1, 1)

    expected = torch.zeros(COLUMNS, 2, dtype=torch.long)
    expected[:, 1] = 1
    for token in range(start, min(end, start + COLUMNS * per_chip)):
        expected[token // per_chip % COLUMNS, 0] += 1
    assert result.buffer_address() == config.buffer_address()
    assert torch.equal(read(config)[1, :, 0].long(), expected)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"cluster_axis": 1}, r"cluster_axis must be 0 \(current value: 1\). Other values are not tested."),
        ({"num_links": 5}, r"num_links must be between 1 and 4 \(current value: 5\)."),
        ({"num_links": 3}, "Same-row has only 8 cores for 3 senders"),
        ({"fp8_output": True}, "FP8_E4M3 is not supported on arch wormhole_b0"),
        ({"fp8_scaled_input": True}, "fp8_scaled_input requires a scales_tensor"),
    ],
)
def test_dispatch_refuses_as_ttnn_does(mesh: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        send(mesh, draw_choices(), draw_tokens(), **options)
