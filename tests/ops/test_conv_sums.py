"""Sums of convolutions are as wide as compute_config says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional as F

import ttmesh.ttnn as ttnn
from ttmesh.ops.conv_sums import as_operand, slide_in_steps, steps_of


@pytest.fixture
def device() -> Iterator[ttnn.MeshDevice]:
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 1)) as device:
        yield device


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).bfloat16().float()


def convolve(
    device: ttnn.MeshDevice, x: torch.Tensor, w: torch.Tensor, dtype: ttnn.DataType, wide: bool | None
) -> torch.Tensor:
    batch, channels, height, width = x.shape
    last = x.permute(0, 2, 3, 1)
    compute = None
    if wide is not None:
        compute = ttnn.init_device_compute_kernel_config(device.arch(), fp32_dest_acc_en=wide)
    result = ttnn.conv2d(
        input_tensor=ttnn.from_torch(last, dtype=dtype, device=device),
        weight_tensor=ttnn.from_torch(w, dtype=dtype),
        device=device,
        in_channels=channels,
        out_channels=w.shape[0],
        batch_size=batch,
        input_height=height,
        input_width=width,
        kernel_size=tuple(w.shape[-2:]),
        compute_config=compute,
        dtype=dtype,
    )
    out = (height - w.shape[-2] + 1, width - w.shape[-1] + 1)
    return ttnn.to_torch(result).float().reshape(batch, *out, -1)[..., : w.shape[0]].permute(0, 3, 1, 2)


def test_a_step_has_sixteen_taps() -> None:
    assert len(list(steps_of(64, 64, (1, 1)))) == 4
    assert len(list(steps_of(3, 3, (7, 7)))) == 7 * 4  # three channels take eight places, two taps fill a step
    assert len(list(steps_of(64, 1, (3, 3)))) == 9  # of other channels' taps only zeros are added


def test_sums_are_bfloat16_unless_fp32_is_asked_for(device: ttnn.MeshDevice) -> None:
    x, w = draw(1, 64, 5, 5), draw(32, 64, 1, 1)

    narrow, asked, wide = (convolve(device, x, w, ttnn.bfloat16, choice) for choice in (None, False, True))

    sums = torch.zeros(1, 32, 5, 5)
    for first in range(0, 64, 16):
        part = F.conv2d(x[:, first : first + 16], w[:, first : first + 16])
        sums = (sums + part).bfloat16().float()
    assert torch.equal(narrow, sums)
    assert torch.equal(asked, sums)
    assert torch.equal(wide, F.conv2d(x, w).bfloat16().float())
    assert not torch.equal(narrow, wide)


def test_float32_operands_are_tf32(device: ttnn.MeshDevice) -> None:
    x, w = draw(1, 16, 4, 4) * 1.0001, draw(32, 16, 1, 1)  # 1.0001 fills bits behind TF32's

    result = convolve(device, x, w, ttnn.float32, None)

    seen = (x.view(torch.int32) & ~0x1FFF).view(torch.float32)
    assert torch.allclose(result, F.conv2d(seen, w), rtol=1e-6, atol=1e-5)
    assert not torch.allclose(result, F.conv2d(x, w), rtol=1e-6, atol=1e-5)


def test_what_operands_lose_does_not_stop_gradients() -> None:
    values = torch.tensor([1.00001], requires_grad=True)

    as_operand(values, wide_sums=True).sum().backward()

    assert values.grad is not None
    assert values.grad.item() == 1


@pytest.mark.parametrize(
    ("channels", "groups", "kernel", "stride", "dilation"),
    [(40, 1, (3, 2), (2, 1), (1, 2)), (12, 4, (3, 3), (1, 1), (2, 1)), (64, 2, (1, 3), (1, 2), (1, 1))],
)
def test_steps_add_up_to_the_convolution(
    channels: int, groups: int, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int]
) -> None:
    x, w = draw(2, channels, 11, 13), draw(8, channels // groups, *kernel)

    found = slide_in_steps(x, w, channels, stride, dilation, groups)

    expected = F.conv2d(x, w, None, stride, 0, dilation, groups)
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()  # some steps of half a bfloat16 place each
