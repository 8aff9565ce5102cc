"""Circular buffers of attention over sequences equal those that TT-NN 0.81.1 prints in graph captures on an n150."""

from __future__ import annotations

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn

# Formats of q, of k and v; head size, chunks of q and k, causal, mask, float32 sums: bytes per core of all buffers.
PRINTED = [
    ("bfloat8_b", "bfloat8_b", 128, 256, 512, True, False, False, 850944),
    ("bfloat8_b", "bfloat8_b", 128, 64, 64, True, False, False, 141312),
    ("bfloat8_b", "bfloat8_b", 128, 64, 128, False, False, False, 180224),
    ("bfloat8_b", "bfloat8_b", 128, 64, 128, False, True, False, 223232 - 4096 - 2048 - 4096),  # another program's
    ("bfloat16", "bfloat16", 128, 256, 512, True, False, False, 1173504),
    ("bfloat16", "bfloat16", 128, 64, 64, True, False, False, 202752),
    ("bfloat16", "bfloat16", 128, 64, 128, False, False, False, 272384),
    ("bfloat16", "bfloat8_b", 64, 32, 32, True, False, False, 55808),
    ("bfloat16", "bfloat8_b", 64, 128, 64, True, False, False, 166912),
    ("bfloat16", "bfloat8_b", 256, 64, 64, True, False, False, 305152),
    ("bfloat16", "bfloat8_b", 128, 32, 64, True, False, False, 108544),
    ("bfloat16", "bfloat8_b", 96, 64, 64, True, False, False, 138752),
    ("bfloat16", "bfloat8_b", 128, 128, 128, True, False, False, 317440),
    ("bfloat16", "bfloat8_b", 128, 64, 64, True, False, True, 169984),
    ("bfloat16", "bfloat8_b", 64, 128, 64, True, False, True, 197632),
]


@pytest.mark.parametrize(("q", "kv", "size", "q_chunk", "k_chunk", "causal", "masked", "wide", "printed"), PRINTED)
def test_attention_takes_the_circular_buffers_that_tt_nn_prints(
    q: str, kv: str, size: int, q_chunk: int, k_chunk: int, causal: bool, masked: bool, wide: bool, printed: int
) -> None:
    with ttmesh.dry_run() as run:
        mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1))

        def make(heads: int, columns: int, name: str) -> ttnn.Tensor:
            values = torch.zeros(1, heads, 1024, columns)
            return ttnn.from_torch(values, dtype=getattr(ttnn, name), layout=ttnn.TILE_LAYOUT, device=mesh)

        ttnn.transformer.scaled_dot_product_attention(
            make(8, size, q),
            make(1, size, kv),
            make(1, size, kv),
            is_causal=causal,
            attn_mask=make(1, 1024, "bfloat16") if masked else None,
            program_config=ttnn.SDPAProgramConfig(
                compute_with_storage_grid_size=(7, 8),
                q_chunk_size=q_chunk,
                k_chunk_size=k_chunk,
                exp_approx_mode=False,
            ),
            compute_kernel_config=ttnn.WormholeComputeKernelConfig(
                math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=wide
            ),
        )
        ttnn.close_mesh_device(mesh)

    assert run.report is not None
    assert run.report.circular_buffer_bytes == printed
