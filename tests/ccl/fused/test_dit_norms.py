"""Norms of diffusion transformers equal torch's over the full row; heads are split and rotated."""

from __future__ import annotations

import pytest
import torch
from ccl_meshes import lanes_of, on, opened, random_lanes

import ttmesh.ttnn as ttnn
from ttmesh.base.dtypes import Layout, bfloat16, float32

pytestmark = pytest.mark.usefixtures("collectives_on_some_chips")

TILE = Layout.TILE
ROWS, WIDTH, EPSILON = 32, 128, 1e-6
rms = ttnn.experimental.dit_fused_distributed_rmsnorm
layer = ttnn.experimental.dit_fused_distributed_layernorm


def turn_matrix() -> torch.Tensor:
    matrix = torch.zeros(1, 1, 1, 1, 32, 32)
    for i in range(0, 32, 2):
        matrix[..., i, i + 1], matrix[..., i + 1, i] = 1, -1
    return matrix


@pytest.mark.parametrize("axis", [0, 1])
def test_a_block_norm_is_that_of_the_whole_row(axis: int) -> None:
    with opened((2, 4)) as mesh:
        values = random_lanes((2, 4), (1, 2, ROWS, WIDTH), float32)
        weight, bias = (random_lanes((2, 4), (1, WIDTH), float32, seed=seed) for seed in (1, 2))
        x, w, b = (on(mesh, v, float32, layout=TILE) for v in (values, weight, bias))
        buffer = ttnn.experimental.dit_fused_distributed_rmsnorm_create_stats_buffer(x, axis, mesh)

        normed = rms(x, axis, mesh, [], epsilon=EPSILON, weight=w, bias=b, persistent_output_buffer=buffer)

        mean = values.square().mean(-1, keepdim=True).mean(axis, keepdim=True)
        expected = values * torch.rsqrt(mean + EPSILON) * weight[:, :, None, None] + bias[:, :, None, None]
        assert torch.allclose(lanes_of(normed), expected, atol=1e-5)
        assert mesh.traffic.counters.fabric_bytes() > 0


def test_a_layer_norm_takes_the_mean_off() -> None:
    with opened((1, 4)) as mesh:
        values = random_lanes((1, 4), (1, 1, ROWS, WIDTH), bfloat16)

        x = on(mesh, values, bfloat16, layout=TILE)
        normed = layer(x, 1, mesh, [], epsilon=EPSILON, dtype=ttnn.float32, persistent_output_buffer=x)

        row = torch.cat(list(values[0].float()), -1)
        expected = torch.nn.functional.layer_norm(row, (4 * WIDTH,), eps=EPSILON)
        assert torch.allclose(torch.cat(list(lanes_of(normed)[0]), -1), expected, atol=1e-5)


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("heads_in_table", [1, 2])
def test_heads_are_split_and_turned(per_head: bool, heads_in_table: int) -> None:
    heads, size = 2, WIDTH // 2
    with opened((1, 4)) as mesh:
        values = random_lanes((1, 4), (1, 1, ROWS, WIDTH), float32)
        cos, sin = (random_lanes((1, 4), (1, heads_in_table, ROWS, size), float32, seed=seed) for seed in (1, 2))
        x, c, s = (on(mesh, v, float32, layout=TILE) for v in (values, cos, sin))

        result = rms(
            x, 1, mesh, [], epsilon=EPSILON, num_heads_per_device=heads, per_head_norm=per_head, rope_cos=c, rope_sin=s,
            transformation_mat=on(mesh, turn_matrix(), float32, layout=TILE), persistent_output_buffer=x,
        )  # fmt: skip

        split = values.reshape(1, 4, 1, ROWS, heads, size).transpose(3, 4)
        mean = split.square().mean(-1, keepdim=True)
        if not per_head:
            mean = mean.mean((1, 3), keepdim=True)
        normed = split * torch.rsqrt(mean + EPSILON)
        rotated = torch.stack([-normed[..., 1::2], normed[..., 0::2]], -1).flatten(-2)
        assert torch.allclose(lanes_of(result), normed * cos + rotated * sin, atol=1e-5)


def test_a_batch_is_folded_into_the_rows_of_its_heads() -> None:
    with opened((1, 2)) as mesh:
        values = random_lanes((1, 2), (1, 3, ROWS, WIDTH), float32)

        x = on(mesh, values, float32, layout=TILE)
        result = rms(x, 1, mesh, [], epsilon=EPSILON, num_heads_per_device=4, persistent_output_buffer=x)

        mean = values.square().mean(-1, keepdim=True).mean(1, keepdim=True)
        normed = (values * torch.rsqrt(mean + EPSILON)).reshape(1, 2, 1, 3, ROWS, 4, 32)
        expected = normed.permute(0, 1, 2, 5, 3, 4, 6).reshape(1, 2, 1, 4, 3 * ROWS, 32)
        assert torch.allclose(lanes_of(result), expected, atol=1e-5)


def test_what_tt_nn_refuses_is_refused() -> None:
    with opened((1, 2)) as mesh:
        x = on(mesh, random_lanes((1, 2), (1, 1, ROWS, WIDTH), float32), float32, layout=TILE)
        assert ttnn.experimental.dit_fused_distributed_rmsnorm_create_stats_buffer(x, 0, mesh) is None

        with pytest.raises(RuntimeError, match="bias requires weight to also be provided"):
            rms(x, 1, mesh, [], bias=x, persistent_output_buffer=x)
        with pytest.raises(RuntimeError, match="RoPE requires transformation_mat, rope_cos, and rope_sin all"):
            rms(x, 1, mesh, [], rope_cos=x, persistent_output_buffer=x)
        with pytest.raises(RuntimeError, match="LayerNorm currently requires BFLOAT16 input"):
            layer(x, 1, mesh, [])
