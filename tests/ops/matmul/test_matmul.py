"""Matmuls: where results are stored, what their programs need of L1, and that weights are never expanded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ttmesh import ttnn
from ttmesh.ops.lane_functions import gemm


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[ttnn.MeshDevice]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    device = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield device
    ttnn.close_mesh_device(device)


minimal, split = ttnn.experimental.minimal_matmul, ttnn.experimental.minimal_matmul_split


def on(mesh: ttnn.MeshDevice, *shape: int, memory_config: object = ttnn.DRAM_MEMORY_CONFIG) -> ttnn.Tensor:
    return ttnn.from_torch(
        torch.ones(shape),
        dtype=ttnn.bfloat16,
        layout=ttnn.TILE_LAYOUT,
        device=mesh,
        mesh_mapper=ttnn.ReplicateTensorToMesh(mesh),
        memory_config=memory_config,
    )


def blocks(**changes: object) -> ttnn.MatmulMultiCoreReuseMultiCastProgramConfig:
    sizes = {"in0_block_w": 2, "out_subblock_h": 1, "out_subblock_w": 1, "per_core_M": 4, "per_core_N": 4}
    grid = {"compute_with_storage_grid_size": (8, 8), "transpose_mcast": False}
    return ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(**{**sizes, **grid, **changes})


def test_results_go_to_dram_whatever_the_operands_memory(mesh) -> None:
    a = on(mesh, 32, 64, memory_config=ttnn.L1_MEMORY_CONFIG)

    assert ttnn.matmul(a, on(mesh, 64, 32)).memory_config() == ttnn.DRAM_MEMORY_CONFIG


def test_shards_of_the_result_follow_from_the_program_config(mesh) -> None:
    config = blocks(per_core_M=2, per_core_N=1, in0_block_w=1)

    result = ttnn.matmul(
        on(mesh, 256, 64), on(mesh, 64, 128), program_config=config, memory_config=ttnn.L1_BLOCK_SHARDED_MEMORY_CONFIG
    )

    shards = result.memory_config().shard_spec
    assert shards.shape == [64, 32]
    assert shards.grid.bounding_box().grid_size() == ttnn.CoreCoord(4, 4)


def test_circular_buffers_beyond_l1_are_refused_with_the_sizes(mesh) -> None:
    config = blocks(in0_block_w=32, per_core_M=32, per_core_N=32)

    # 2 x 32 x 32 tiles of 2048 B for each operand and 32 x 32 for the result, from the bottom of L1
    with pytest.raises(
        RuntimeError, match=r"Statically allocated circular buffers on core range .* beyond max L1 size"
    ):
        ttnn.matmul(on(mesh, 2048, 2048), on(mesh, 2048, 2048), program_config=config)


def test_circular_buffers_that_reach_l1_tensors_name_them(mesh) -> None:
    config = blocks(in0_block_w=4, per_core_M=8, per_core_N=8)
    a, b = on(mesh, 512, 512), on(mesh, 512, 512)
    ttnn.matmul(a, b, program_config=config)  # fits while L1 is empty
    held = on(mesh, 1024, 36 * 1024, memory_config=ttnn.L1_MEMORY_CONFIG)

    with pytest.raises(RuntimeError, match=r"clash with L1 buffers on core range .* the lowest L1 buffers are"):
        ttnn.matmul(a, b, program_config=config)
    ttnn.deallocate(held)
    ttnn.matmul(a, b, program_config=config)


def test_float32_accumulation_needs_more_l1(mesh) -> None:
    config = blocks(in0_block_w=4, per_core_M=12, per_core_N=16)
    a, b = on(mesh, 768, 512), on(mesh, 512, 1024)
    exact = ttnn.WormholeComputeKernelConfig(fp32_dest_acc_en=True)
    ttnn.matmul(a, b, program_config=config)

    with pytest.raises(RuntimeError, match="beyond max L1 size"):
        ttnn.matmul(
            a, b, program_config=blocks(in0_block_w=4, per_core_M=16, per_core_N=16), compute_kernel_config=exact
        )


DEEP, WIDE = blocks(in0_block_w=3), blocks(out_subblock_w=3, in0_block_w=1)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda a, b: ttnn.matmul(a, a), "The width of the first tensor must be equal to the height of the second"),
        (lambda a, b: ttnn.matmul(a, b, program_config=DEEP), r"Kt \(2\) must be divisible by in0_block_w \(3\)"),
        (lambda a, b: ttnn.matmul(a, b, program_config=WIDE), "must be divisible by out_subblock_w"),
        (lambda a, b: ttnn.addmm(a, a, b, alpha=0.0), "alpha parameter cannot be 0"),
        (lambda a, b: ttnn.linear(a, b, activation="nothing"), "nothing"),
    ],
)  # fmt: skip
def test_refusals_use_the_texts_of_ttnn(mesh, call, text) -> None:
    with pytest.raises(RuntimeError, match=text):
        call(on(mesh, 128, 64), on(mesh, 64, 128))


def test_replicated_weights_make_one_matmul(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(gemm, "multiply_matrices", lambda a, b: seen.append((a.shape, b.shape)) or torch.mm(a, b))

    result = gemm.matmul_lanes(torch.ones(2, 4, 3, 5, 6), torch.ones(1, 1, 6, 7), lane_axes=2)

    assert seen == [((2 * 4 * 3 * 5, 6), (6, 7))]
    assert result.shape == (2, 4, 3, 5, 7)


def test_weights_shared_along_one_mesh_axis_are_not_copied(monkeypatch) -> None:
    inputs = []
    monkeypatch.setattr(torch, "matmul", lambda a, b, matmul=torch.matmul: inputs.append(b) or matmul(a, b))
    a, b = torch.randn(2, 4, 5, 6), torch.randn(1, 4, 6, 7)

    result = gemm.matmul_lanes(a, b, lane_axes=2)

    assert inputs[0].data_ptr() == b.data_ptr()
    assert torch.allclose(result, torch.einsum("rcmk,ckn->rcmn", a, b[0]), atol=1e-5)


def test_large_float32_matmuls_agree_with_torch() -> None:
    a, b = torch.randn(3, 128, 256), torch.randn(256, 192)

    assert torch.allclose(gemm.matmul_lanes(a, b, lane_axes=0), a @ b, atol=1e-3)


def test_activations_of_a_program_config_may_be_lists(mesh) -> None:
    x = torch.linspace(-2, 2, 32 * 32).reshape(32, 32).bfloat16()
    a = ttnn.from_torch(x, layout=ttnn.TILE_LAYOUT, device=mesh)
    eye = ttnn.from_torch(torch.eye(32).bfloat16(), layout=ttnn.TILE_LAYOUT, device=mesh)
    config = ttnn.MatmulMultiCoreReuseMultiCastProgramConfig(
        compute_with_storage_grid_size=[1, 1],
        in0_block_w=1,
        out_subblock_h=1,
        out_subblock_w=1,
        per_core_M=1,
        per_core_N=1,
        transpose_mcast=False,
        fused_activation=[ttnn.UnaryOpType.GELU, True],
    )

    result = ttnn.matmul(a, eye, program_config=config)

    assert config.fused_activation == ttnn.UnaryWithParam(ttnn.UnaryOpType.GELU, True)
    config.fused_activation = (ttnn.UnaryOpType.RELU,)
    assert config.fused_activation == ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU)
    first = ttnn.to_torch(ttnn.get_device_tensors(result)[0]).float()
    assert torch.allclose(first, torch.nn.functional.gelu(x.float()), atol=0.02)


def test_a_gated_matmul_takes_alternating_tiles_of_gate_and_up(mesh) -> None:
    draw = torch.Generator().manual_seed(0)
    a, gate, up = (torch.randn(32, 32, generator=draw).bfloat16() for _ in range(3))
    values, weight = (
        ttnn.from_torch(t, layout=ttnn.TILE_LAYOUT, device=mesh) for t in (a, torch.cat([gate, up, gate, -up], -1))
    )

    result = ttnn.to_torch(ttnn.get_device_tensors(minimal(values, weight, fuse_swiglu=True))[0]).float()
    results = split(values, weight, chunks=2, fuse_swiglu=True)

    expected = torch.nn.functional.silu(a.float() @ gate.float()) * (a.float() @ up.float())
    torch.testing.assert_close(result, torch.cat([expected, -expected], -1), rtol=0.02, atol=0.02)
    assert torch.equal(ttnn.to_torch(ttnn.get_device_tensors(results[1])[0]).float(), result[:, 32:])


def test_what_gated_matmuls_cannot_take_is_refused(mesh) -> None:
    a = on(mesh, 32, 64)

    with pytest.raises(RuntimeError, match=r"weight width N=96 to be a multiple of 2\*TILE_WIDTH=64"):
        minimal(a, on(mesh, 64, 96), fuse_swiglu=True)
    with pytest.raises(RuntimeError, match="cannot combine fuse_swiglu with a unary fused_activation"):
        minimal(a, on(mesh, 64, 64), fuse_swiglu=True, fused_activation="gelu")
    with pytest.raises(RuntimeError, match=r"Output width N=64 must be divisible by chunks=3"):
        split(a, on(mesh, 64, 64), chunks=3)
    with pytest.raises(RuntimeError, match=r"per-chunk weight width N/chunks=32 to be a multiple of 2\*TILE_WIDTH=64"):
        split(a, on(mesh, 64, 64), chunks=2, fuse_swiglu=True)


def test_a_bias_of_a_whole_matrix_is_added_by_the_batched_matmul_itself() -> None:
    device = ttnn.open_device(device_id=0)
    a, b = (ttnn.from_torch(torch.randn(8, 1, 64, 64), layout=ttnn.TILE_LAYOUT, device=device) for _ in range(2))
    config = ttnn.MatmulMultiCoreReuseProgramConfig(
        compute_with_storage_grid_size=(8, 1),
        in0_block_w=2,
        out_subblock_h=1,
        out_subblock_w=1,
        per_core_M=2,
        per_core_N=2,
    )
    programs = {}
    for shape in ((64, 64), (1, 64), (8, 1, 64, 64)):
        bias = ttnn.from_torch(torch.randn(shape), layout=ttnn.TILE_LAYOUT, device=device)
        device.clear_program_cache()
        ttnn.linear(a, b, bias=bias, program_config=config)
        programs[shape] = device.num_program_cache_entries()

    assert programs == {(64, 64): 1, (1, 64): 2, (8, 1, 64, 64): 2}  # counted by TT-NN 0.81.1
    ttnn.close_device(device)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_transposed_heads_are_gathered_without_transposing_them(dtype: torch.dtype) -> None:
    fused = torch.randn(1, 2, 3, 40, 4 * 16).to(dtype)
    heads = fused.unflatten(-1, (4, 16)).transpose(-2, -3)

    gathered = gemm._gather_batches(heads.mT)

    assert torch.equal(gathered, heads.mT)
    assert gathered.mT.is_contiguous()
    apart = gemm.matmul_lanes(heads, heads.mT, lane_axes=2)
    assert torch.equal(apart, gemm.matmul_lanes(heads.contiguous(), heads.mT.contiguous(), lane_axes=2))
    for kept in (heads, fused.mT, heads.contiguous().mT):  # what is not transposed, or lies together
        assert gemm._gather_batches(kept) is kept
