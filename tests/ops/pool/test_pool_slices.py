"""Pools of tensors in DRAM, in slices that fit into L1."""

import pytest
import torch

import ttmesh.ttnn as ttnn


@pytest.fixture
def device():
    device = ttnn.open_device(device_id=0)
    yield device
    ttnn.close_device(device)


def images(device, channels, size):
    values = torch.randn(1, size, size, channels).bfloat16()
    flat = values.reshape(1, 1, -1, channels)
    return values.permute(0, 3, 1, 2).float(), ttnn.from_torch(flat, layout=ttnn.ROW_MAJOR_LAYOUT, device=device)


def pool(device, tensor, slices, *, size=1024, kernel=(3, 3)):
    return ttnn.max_pool2d(
        tensor, batch_size=1, input_h=size, input_w=size, channels=32, kernel_size=kernel, stride=(2, 2), padding=(1, 1),
        dilation=(1, 1), dram_slice_config=slices,
    )  # fmt: skip


def test_a_pool_too_large_for_l1_fits_in_slices_and_stays_in_dram(device):
    expected, tensor = images(device, 32, 1024)
    slices = ttnn.Op2DSliceConfig(num_slices=8, slice_type=ttnn.Op2DDRAMSliceHeight)

    with pytest.raises(RuntimeError, match="Out of Memory"):
        pool(device, tensor, ttnn.Op2DL1FullSliceConfig)
    result, chosen = pool(device, tensor, slices), pool(device, tensor, None)

    assert result.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    wanted = torch.nn.functional.max_pool2d(expected, 3, 2, 1).permute(0, 2, 3, 1).reshape(1, 1, -1, 32)
    assert torch.equal(ttnn.to_torch(result).float(), wanted)
    assert chosen.memory_config() == ttnn.DRAM_MEMORY_CONFIG
    assert torch.equal(ttnn.to_torch(chosen), ttnn.to_torch(result))


def test_slices_smaller_than_the_window_are_refused(device):
    _, tensor = images(device, 32, 64)
    slices = ttnn.Op2DSliceConfig(num_slices=32, slice_type=ttnn.Op2DDRAMSliceWidth)

    with pytest.raises(RuntimeError, match=r"Cannot fit Pool2D operation in L1 memory with DRAM slicing"):
        pool(device, tensor, slices, size=64, kernel=(9, 9))
