"""Convolutions agree with torch, keep their weights, and need the L1 that the chip's would."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import ttmesh
import ttmesh.ttnn as ttnn
from ttmesh.ops.conv.conv_buffers import circular_buffers
from ttmesh.ops.conv.conv_sharding import ParallelConfig, Window
from ttmesh.ops.conv.conv_weights import from_matrix, to_matrix


@pytest.fixture
def mesh(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TTMESH_SYSTEM", "t3k")
    opened = ttnn.open_mesh_device(ttnn.MeshShape(2, 4))
    yield opened
    ttnn.close_mesh_device(opened)


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16().float()


def pcc(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.double().flatten(), b.double().flatten()]))[0, 1])


def on(mesh: Any, images: torch.Tensor, **options: Any) -> Any:
    """[n, c, h, w] images as TT-NN wants them."""
    last = images.permute(0, 2, 3, 1).contiguous()
    return ttnn.from_torch(last, dtype=ttnn.bfloat16, device=mesh, layout=ttnn.ROW_MAJOR_LAYOUT, **options)


def rows(images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 2, 3, 1).reshape(1, 1, -1, images.shape[1])


def of_device(tensor: Any, device: int) -> torch.Tensor:
    return ttnn.to_torch(ttnn.get_device_tensors(tensor)[device]).float()


def options(x: torch.Tensor, out: int, kernel: int, mesh: Any, **more: Any) -> dict[str, Any]:
    batch, channels, height, width = x.shape
    return {
        "device": mesh,
        "in_channels": channels,
        "out_channels": out,
        "batch_size": batch,
        "input_height": height,
        "input_width": width,
        "kernel_size": (kernel, kernel),
        **more,
    }


@pytest.mark.parametrize(
    ("channels", "out", "kernel", "stride", "padding", "dilation", "groups"),
    [
        (32, 64, 3, 1, 1, 1, 1),
        (16, 24, 3, 2, 1, 1, 4),
        (3, 32, 7, 2, 3, 1, 1),
        (64, 64, 1, 1, 0, 1, 1),
        (32, 32, 3, 1, 2, 2, 32),
    ],
)
def test_conv2d_agrees_with_torch(
    mesh: Any, channels: int, out: int, kernel: int, stride: int, padding: int, dilation: int, groups: int
) -> None:
    x, w, b = draw(2, channels, 12, 10), draw(out, channels // groups, kernel, kernel), draw(1, 1, 1, out)

    result, size, (kept, bias) = ttnn.conv2d(
        input_tensor=on(mesh, x),
        weight_tensor=ttnn.from_torch(w, dtype=ttnn.bfloat16),
        bias_tensor=ttnn.from_torch(b, dtype=ttnn.bfloat16),
        stride=(stride, stride),
        padding=(padding, padding),
        dilation=(dilation, dilation),
        groups=groups,
        return_output_dim=True,
        return_weights_and_bias=True,
        **options(x, out, kernel, mesh),
    )

    expected = F.conv2d(x, w, b.flatten(), stride, padding, dilation, groups)
    assert size == tuple(expected.shape[-2:])
    assert kept.layout is ttnn.TILE_LAYOUT
    assert bias.shape[-1] % 32 == 0
    assert pcc(of_device(result, 5), rows(expected)) > 0.9999


def test_prepared_weights_give_the_same_result(mesh: Any) -> None:
    x, w = draw(1, 32, 8, 8), draw(32, 32, 3, 3)
    source = ttnn.from_torch(w, dtype=ttnn.bfloat16)
    given = options(x, 32, 3, mesh, padding=(1, 1))
    image = on(mesh, x)

    prepared = ttnn.prepare_conv_weights(
        weight_tensor=source,
        input_memory_config=image.memory_config(),
        input_layout=image.layout,
        weights_format="OIHW",
        stride=(1, 1),
        dilation=(1, 1),
        has_bias=False,
        groups=1,
        input_dtype=ttnn.bfloat16,
        **given,
    )

    plain = ttnn.conv2d(input_tensor=image, weight_tensor=source, **given)
    again = ttnn.conv2d(input_tensor=image, weight_tensor=prepared, **given)
    assert torch.equal(of_device(plain, 0), of_device(again, 0))


def test_prepared_weights_of_another_convolution_are_refused(mesh: Any) -> None:
    x = draw(1, 32, 8, 8)
    _, (kept, _) = ttnn.conv2d(
        input_tensor=on(mesh, x),
        weight_tensor=ttnn.from_torch(draw(32, 32, 3, 3), dtype=ttnn.bfloat16),
        return_weights_and_bias=True,
        **options(x, 32, 3, mesh),
    )

    with pytest.raises(RuntimeError, match="Prepare them with the options of this convolution"):
        ttnn.conv2d(input_tensor=on(mesh, x), weight_tensor=kept, **options(x, 64, 3, mesh))


def test_devices_may_have_their_own_weights(mesh: Any) -> None:
    x, w = draw(1, 16, 6, 6), draw(8 * 32, 16, 3, 3)

    result = ttnn.conv2d(
        input_tensor=on(mesh, x),
        weight_tensor=ttnn.from_torch(w, dtype=ttnn.bfloat16, mesh_mapper=ttnn.ShardTensorToMesh(mesh, dim=0)),
        **options(x, 32, 3, mesh),
    )

    for device in (0, 3, 7):
        expected = F.conv2d(x, w[32 * device : 32 * device + 32])
        assert pcc(of_device(result, device), rows(expected)) > 0.9999


@pytest.mark.parametrize("groups", [1, 2])
def test_conv_transpose2d_agrees_with_torch(mesh: Any, groups: int) -> None:
    x, w = draw(2, 32, 8, 8), draw(32, 48 // groups, 3, 3)

    result = ttnn.conv_transpose2d(
        input_tensor=on(mesh, x),
        weight_tensor=ttnn.from_torch(w, dtype=ttnn.bfloat16),
        stride=(2, 2),
        padding=(1, 1),
        output_padding=(1, 1),
        groups=groups,
        **options(x, 48, 3, mesh),
    )

    expected = F.conv_transpose2d(x, w, None, 2, 1, 1, groups)
    assert pcc(of_device(result, 2), rows(expected)) > 0.9999


@pytest.mark.parametrize("numerics", ["ideal", "realistic"])
@pytest.mark.parametrize(
    ("stride", "padding", "extra", "groups", "mirror"),
    [(1, (1, 2, 2, 1), 0, 1, True), (2, (1, 1, 1, 1), 1, 2, True), (2, (0, 0, 1, 1), 0, 32, False)],
)
def test_conv_transpose2d_replicates_the_edge_of_the_spread_image(
    mesh: Any, stride: int, padding: tuple[int, ...], extra: int, groups: int, mirror: bool, numerics: str
) -> None:
    x, w = draw(2, 32, 6, 5) + 4, draw(32, 32 // groups, 3, 3)

    with ttmesh.numerics(numerics):
        result = ttnn.conv_transpose2d(
            input_tensor=on(mesh, x),
            weight_tensor=ttnn.from_torch(w, dtype=ttnn.bfloat16),
            stride=(stride, stride),
            padding=padding,
            output_padding=(extra, extra),
            groups=groups,
            mirror_kernel=mirror,
            conv_config=ttnn.Conv2dConfig(padding_mode=ttnn.PaddingMode.Replicate),
            **options(x, 32, 3, mesh),
        )

    spread = torch.zeros(2, 32, 5 * stride + 1, 4 * stride + 1)
    spread[..., ::stride, ::stride] = x
    top, bottom, left, right = padding
    down = torch.arange(top - 2, 5 * stride + 3 - bottom + extra).clamp(0, 5 * stride)
    across = torch.arange(left - 2, 4 * stride + 3 - right + extra).clamp(0, 4 * stride)
    taps = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    expected = F.conv2d(spread[..., down[:, None], across], taps.flip(-1, -2) if mirror else taps, groups=groups)
    assert pcc(of_device(result, 2), rows(expected)) > 0.999  # with a border of zeros: 0.89 and less


def test_conv1d_returns_its_length(mesh: Any) -> None:
    x, w = draw(2, 32, 20), draw(64, 32, 5)

    result, length = ttnn.conv1d(
        input_tensor=ttnn.from_torch(x.transpose(1, 2).contiguous(), dtype=ttnn.bfloat16, device=mesh),
        weight_tensor=ttnn.from_torch(w, dtype=ttnn.bfloat16),
        device=mesh,
        in_channels=32,
        out_channels=64,
        batch_size=2,
        input_length=20,
        kernel_size=5,
        padding=2,
        return_output_dim=True,
    )

    expected = F.conv1d(x, w, padding=2)
    assert length == expected.shape[-1]
    assert pcc(of_device(result, 1), expected.transpose(1, 2).reshape(1, 1, -1, 64)) > 0.9999


def test_activation_and_output_layout_come_from_the_config(mesh: Any) -> None:
    x, w = draw(1, 32, 8, 8), draw(32, 32, 3, 3)
    config = ttnn.Conv2dConfig(
        activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU),
        output_layout=ttnn.ROW_MAJOR_LAYOUT,
        weights_dtype=ttnn.bfloat8_b,
    )

    result = ttnn.conv2d(
        input_tensor=on(mesh, x),
        weight_tensor=ttnn.from_torch(w, dtype=ttnn.float32),
        conv_config=config,
        slice_config=ttnn.Conv2dL1FullSliceConfig,  # one slice from DRAM is left in tiles
        **options(x, 32, 3, mesh),
    )

    assert result.layout is ttnn.ROW_MAJOR_LAYOUT
    assert pcc(of_device(result, 0), rows(F.relu(F.conv2d(x, w)))) > 0.99


def test_a_result_in_l1_is_sharded_and_one_in_dram_is_not(mesh: Any) -> None:
    x, w = draw(1, 32, 16, 16), ttnn.from_torch(draw(32, 32, 3, 3), dtype=ttnn.bfloat16)
    given = options(x, 32, 3, mesh, padding=(1, 1))

    here = ttnn.conv2d(input_tensor=on(mesh, x, memory_config=ttnn.L1_MEMORY_CONFIG), weight_tensor=w, **given)
    there = ttnn.conv2d(input_tensor=on(mesh, x), weight_tensor=w, **given)

    assert here.memory_config().memory_layout is ttnn.TensorMemoryLayout.BLOCK_SHARDED
    assert there.memory_config() == ttnn.DRAM_MEMORY_CONFIG


# size, channels in and out, kernel, stride, padding, batch, dilation; rows or tiles; shards asked for; bias
L1_RESULTS = {  # as TT-NN 0.81.1 shards them on an n150: layout, shard, cores, bytes of circular buffers
    (14, 128, 256, 3, 1, 0, 2, 1, "tiles", None, False): ("BLOCK", (64, 32), 40, 30784),
    (56, 3, 96, 3, 2, 1, 1, 2, "rows", "BLOCK", True): ("BLOCK", (96, 32), 24, 16448),
    (32, 3, 16, 3, 1, 1, 1, 1, "tiles", "HEIGHT", True): ("HEIGHT", (32, 32), 32, 20544),
    (16, 3, 16, 5, 1, 2, 1, 1, "rows", "HEIGHT", True): ("HEIGHT", (32, 32), 8, 14400),
    (32, 256, 32, 3, 1, 0, 2, 2, "tiles", "BLOCK", True): ("BLOCK", (224, 32), 7, 94272),
    (56, 32, 256, 1, 1, 0, 2, 1, "rows", "BLOCK", False): ("BLOCK", (800, 256), 8, 67584),
    (32, 256, 128, 3, 1, 1, 1, 2, "rows", "WIDTH", False): ("WIDTH", (928, 32), 4, 1124416),
    (32, 96, 256, 1, 2, 0, 1, 1, "rows", "WIDTH", False): ("WIDTH", (256, 32), 8, 38976),
    (14, 64, 128, 1, 2, 0, 1, 1, "tiles", "WIDTH", True): ("WIDTH", (64, 32), 4, 16448),
}


@pytest.mark.parametrize("case", L1_RESULTS, ids=str)
def test_results_in_l1_are_sharded_as_tt_nn_shards_them(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTMESH_SYSTEM", "n150")
    size, channels, filters, kernel, stride, padding, batch, dilation, form, asked, has_bias = case
    layout, shard, cores, buffers = L1_RESULTS[case]
    with ttmesh.dry_run(), ttnn.manage_device(0) as device:
        image = ttnn.from_torch(
            torch.zeros(1, 1, batch * size * size, channels), ttnn.bfloat16, device=device,
            layout=ttnn.TILE_LAYOUT if form == "tiles" else ttnn.ROW_MAJOR_LAYOUT, memory_config=ttnn.L1_MEMORY_CONFIG,
        )  # fmt: skip
        shards = None if asked is None else ttnn.TensorMemoryLayout[f"{asked}_SHARDED"]
        bias = ttnn.from_torch(torch.zeros(1, 1, 1, filters), ttnn.bfloat16) if has_bias else None
        ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
        result = ttnn.conv2d(
            input_tensor=image, weight_tensor=ttnn.from_torch(torch.zeros(filters, channels, kernel, kernel), ttnn.bfloat16),
            bias_tensor=bias, device=device, conv_config=ttnn.Conv2dConfig(shard_layout=shards), in_channels=channels,
            out_channels=filters, batch_size=batch, input_height=size, input_width=size, kernel_size=(kernel, kernel),
            stride=(stride, stride), padding=(padding, padding), dilation=(dilation, dilation),
        )  # fmt: skip
        nodes = ttnn.graph.end_graph_capture()
        memory = result.memory_config()

    assert memory.memory_layout is ttnn.TensorMemoryLayout[f"{layout}_SHARDED"]
    assert (tuple(memory.shard_spec.shape), memory.shard_spec.grid.num_cores()) == (shard, cores)
    assert buffers in {int(node["params"].get("size", 0)) for node in nodes if "buffer_allocate" in node["node_type"]}


def test_circular_buffers_that_do_not_fit_are_refused(mesh: Any) -> None:
    x, w = draw(1, 512, 64, 64), ttnn.from_torch(torch.zeros(512, 512, 3, 3), dtype=ttnn.bfloat16)
    image = on(mesh, x, memory_config=ttnn.L1_MEMORY_CONFIG)
    config = ttnn.Conv2dConfig(shard_layout=ttnn.TensorMemoryLayout.HEIGHT_SHARDED)

    with pytest.raises(RuntimeError, match="Statically allocated circular buffers"):
        ttnn.conv2d(input_tensor=image, weight_tensor=w, conv_config=config, **options(x, 512, 3, mesh, padding=(1, 1)))


GRID = ttnn.CoreRangeSet([ttnn.CoreRange(ttnn.CoreCoord(0, 0), ttnn.CoreCoord(7, 7))])
BY_ROWS = ParallelConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, GRID, 64, 1)
BY_BLOCKS = ParallelConfig(ttnn.TensorMemoryLayout.BLOCK_SHARDED, GRID, 8, 8, input_cores=8)


def test_activations_that_are_kept_between_rows_take_a_row_of_the_image_per_reader() -> None:
    # The first convolution of tt-metal's ResNet-50 on Wormhole, batch 16.
    bfp8 = ttnn.bfloat8_b
    window = Window(
        16 * 112 * 112, 16 * 115 * 115, 16, 64, (4, 4), bfp8, ttnn.bfloat16, bfp8, has_bias=True, out_size=(112, 112)
    )
    config = ttnn.Conv2dConfig(
        act_block_h_override=49 * 32, enable_act_double_buffer=True, enable_activation_reuse=True
    )

    needed = circular_buffers(window, BY_ROWS, config, ttnn.WormholeComputeKernelConfig(packer_l1_acc=True))

    # Two readers, each with 4 tiles across x 8 of taps and what each further row adds, twice, in bfloat16;
    # weights, bias and activations in tiles of bfloat8_b; partial sums are stored in the result.
    kept = sum(4 * 8 + -(-(-(-rows // 4) * 16 * 4 * 2 * (1 + 16 * 4)) // 2048) for rows in (25, 24))
    assert needed == 2 * kept * 2048 + (8 * 2 + 2 + 49 * 8) * 1088 + 64


@pytest.mark.parametrize(
    ("cores", "bytes_of_tiles"),
    [
        (BY_ROWS, 8 * 2 * 1088 + 8 * 1088),  # weights and bias; the rows are read in place
        (BY_BLOCKS, 2 * 1088 + 2 * 196 * 1088 + 196 * 2048 + 1088),  # K of one tile, 8 steps, sums in bfloat16
    ],
)
def test_windows_of_one_pixel_need_the_l1_of_a_matmul(cores: ParallelConfig, bytes_of_tiles: int) -> None:
    bfp8 = ttnn.bfloat8_b
    channels = 64 if cores is BY_ROWS else 256
    window = Window(16 * 56 * 56, 16 * 56 * 56, channels, 256, (1, 1), bfp8, bfp8, bfp8, has_bias=True, is_matmul=True)

    needed = circular_buffers(window, cores, ttnn.Conv2dConfig(), ttnn.WormholeComputeKernelConfig(packer_l1_acc=True))

    assert needed == bytes_of_tiles


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_weight_matrices_hold_exactly_the_weights(groups: int) -> None:
    weight = draw(3, 16, 24 // groups, 3, 2)

    matrix = to_matrix(weight, groups)

    assert torch.equal(from_matrix(matrix, 16, 24, (3, 2), groups), weight)
