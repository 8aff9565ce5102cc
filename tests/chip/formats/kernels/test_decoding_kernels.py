"""The kernels of a decode step do what torch's functions do, on the same GPU."""

from __future__ import annotations

import pytest
import torch

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.chip.backends.index_guard import _make_blank
from ttmesh.chip.formats.kernels import gpu_loader
from ttmesh.ops.attention import sdpa_decode
from ttmesh.ops.attention.rotary_embedding import apply_pair_rotary
from ttmesh.ops.caches import paged_cache_update

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@pytest.fixture(autouse=True)
def ideal():
    with ttmesh.numerics("ideal"):
        yield


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (paged_cache_update, sdpa_decode):
        monkeypatch.setattr(module, "find_gpu_kernels", lambda name: None)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("count", [1, 5, 64])
def test_rows_are_written_as_on_the_cpu(count: int, masked: bool) -> None:
    """Rows that go to one place included: the last one stays."""
    cache = torch.randn(2, 3, 4, 2, 32, 24).bfloat16()
    block, row = torch.randint(0, 4, (1, 3, count)), torch.randint(-1, 32, (2, 1, count), dtype=torch.int32)
    values = torch.randn(2, 1, count, 2, 24).bfloat16()
    mask = torch.rand(2, 3, count) > 0.3 if masked else None
    on_gpu, arguments = cache.cuda(), [None if x is None else x.cuda() for x in (block, row, values, mask)]

    paged_cache_update.write_rows(on_gpu, *arguments, 2)
    for i in range(count):  # torch promises no order of rows in one call
        parts = (None if x is None else x[:, :, i : i + 1] for x in (block, row, values, mask))
        paged_cache_update.write_rows(cache, *parts, 2)

    assert torch.equal(on_gpu.cpu(), cache)


def test_the_extremes_of_indices_are_widened_and_what_is_out_of_range_is_left_out() -> None:
    kernels = gpu_loader.find_gpu_kernels("gpu_cache_rows")
    cache = torch.randn(1, 1, 4, 2, 32, 32).cuda()
    before, extremes = cache.clone(), _make_blank(2)
    for block, row in ((9, 3), (-7, 40)):
        indices = [torch.full((1, 1, 1), index).cuda() for index in (block, row)]
        kernels.write_rows(cache, *indices, torch.ones(1, 1, 1, 2, 32).cuda(), None, extremes)

    assert extremes.tolist() == [[-7, 9], [3, 40]]
    assert torch.equal(cache, before)


@pytest.mark.parametrize("window", [None, 48])
@pytest.mark.parametrize(("heads", "key_heads", "dim", "keys"), [(32, 8, 128, 1024), (8, 8, 64, 96), (16, 1, 32, 70)])
def test_attention_of_one_token(
    heads: int, key_heads: int, dim: int, keys: int, window: int | None, monkeypatch
) -> None:
    users = 4
    q = torch.randn(1, 2, 1, users, heads, dim).cuda().bfloat16()
    k, v = (torch.randn(1, 2, users, key_heads, keys, dim).cuda().bfloat16() for _ in range(2))
    positions = torch.tensor([0, keys // 2, keys - 1, -1], dtype=torch.int32).cuda().reshape(1, 1, users)
    options = {"positions": positions, "mask": None, "sink": None, "scale": None, "window": window}

    found = sdpa_decode.attend_cached(q, k, v, 2, **options)
    without_kernels(monkeypatch)
    expected = sdpa_decode.attend_cached(q, k, v, 2, **options)

    assert found.shape == expected.shape
    assert (found[..., -1, :, :] == 0).all()
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)  # weights are rounded to 8 bits


@pytest.mark.parametrize("table_type", [torch.int32, torch.int64])
def test_attention_of_one_token_through_a_page_table(table_type: torch.dtype, monkeypatch) -> None:
    users, pages, page_rows = 3, 10, 32
    q = torch.randn(1, 2, 1, users, 8, 64).cuda().bfloat16()
    k, v = (torch.randn(1, 2, pages, 4, page_rows, 64).cuda().bfloat16() for _ in range(2))
    table = torch.stack([torch.randperm(pages)[:6] for _ in range(2 * users)]).reshape(1, 2, users, 6)
    table[..., -1] = -1  # a page that nobody has yet
    positions = torch.tensor([0, 100, 150], dtype=torch.int32).cuda().reshape(1, 1, users)
    options = {"mask": None, "sink": None, "scale": None, "window": None, "table": table.to(table_type).cuda()}

    found = sdpa_decode.attend_cached(q, k, v, 2, positions=positions, **options)
    without_kernels(monkeypatch)
    expected = sdpa_decode.attend_cached(q, k, v, 2, positions=positions, **options)

    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_rotary_embeddings_have_the_bits_of_torch() -> None:
    matrix = torch.zeros(1, 1, 1, 1, 32, 32)
    even, odd = torch.arange(0, 32, 2), torch.arange(1, 32, 2)
    matrix[..., even, odd], matrix[..., odd, even] = 1, -1
    kernels, turn = gpu_loader.find_gpu_kernels("gpu_decoding"), matrix.bfloat16().cuda()
    for local, rows in (((1, 4, 8, 128), (1, 4, 1, 128)), ((1, 3, 40, 64), (1, 1, 40, 64))):
        x = torch.randn(1, 2, *local).cuda().bfloat16()
        cos, sin = (torch.randn(1, 2, *rows).cuda().bfloat16() for _ in range(2))

        assert torch.equal(kernels.rotate_pairs(x, cos, sin, turn), apply_pair_rotary(x, cos, sin, turn).bfloat16())


@pytest.mark.parametrize("width", [32, 100, 4096])
def test_rms_norms(width: int) -> None:
    """Within one rounding to bfloat16: the squares are added in another order."""
    kernels = gpu_loader.find_gpu_kernels("gpu_decoding")
    x, weight = torch.randn(2, 3, 7, width).cuda().bfloat16(), torch.randn(width).cuda().bfloat16()
    plain = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-5)

    for parameter, expected in ((None, plain), (weight, plain * weight.double())):
        found = kernels.normalize_rms(x, parameter, 1e-5)
        assert ((found.double() - expected).abs() <= expected.abs() * 2.0**-8).all()


def test_a_bad_position_of_a_traced_update_is_reported_when_a_call_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_BACKEND", "cuda")
    mesh = ttnn.open_mesh_device(ttnn.MeshShape(1, 1), trace_region_size=1 << 20)
    config = ttnn.create_sharded_memory_config(
        (32, 64), ttnn.CoreGrid(y=1, x=2), ttnn.ShardStrategy.HEIGHT, use_height_and_width_as_shard_shape=True
    )
    cache = ttnn.from_torch(torch.zeros(2, 1, 64, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    new = ttnn.from_torch(torch.ones(1, 2, 1, 64), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=mesh)
    new = ttnn.to_memory_config(new, config)
    where = ttnn.from_torch(torch.tensor([3, 5], dtype=torch.int32), dtype=ttnn.int32, device=mesh)

    def update() -> None:
        ttnn.experimental.paged_update_cache(cache, new, update_idxs_tensor=where)

    update()
    trace = ttnn.begin_trace_capture(mesh, cq_id=0)
    update()
    ttnn.end_trace_capture(mesh, trace, cq_id=0)
    for _ in range(3):
        ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)
    bad = ttnn.from_torch(torch.tensor([64, 6], dtype=torch.int32), dtype=ttnn.int32)
    ttnn.copy_host_to_device_tensor(bad, where)

    for _ in range(3):
        with pytest.raises(IndexError, match="index 64 is out of bounds for dimension 3 with size 64"):
            ttnn.execute_trace(mesh, trace, cq_id=0, blocking=False)
            ttnn.synchronize_device(mesh)
    ttnn.copy_host_to_device_tensor(ttnn.from_torch(torch.tensor([8, 7], dtype=torch.int32), dtype=ttnn.int32), where)
    ttnn.execute_trace(mesh, trace, cq_id=0, blocking=True)

    written = ttnn.to_torch(cache)[:, 0, :, 0].nonzero().tolist()
    assert written == [[0, 3], [0, 8], [1, 5], [1, 6], [1, 7]]
    ttnn.close_mesh_device(mesh)
