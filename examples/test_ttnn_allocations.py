"""Seed 001's single-device test: tensors in DRAM and L1 appear in the tracker and go again."""

from __future__ import annotations

import sys

import torch

import ttmesh.ttnn as ttnn


def allocated(device: ttnn.MeshDevice) -> tuple[int, int]:
    kinds = (ttnn.BufferType.DRAM, ttnn.BufferType.L1)
    dram, l1 = (ttnn.get_memory_view(device, kind).total_bytes_allocated_per_bank for kind in kinds)
    return dram, l1


def main() -> int:
    device = ttnn.open_device(device_id=0)
    print(f"baseline: {allocated(device)} bytes per bank of DRAM, L1")
    tensors = []
    for name, config in (("DRAM", ttnn.DRAM_MEMORY_CONFIG), ("L1", ttnn.L1_MEMORY_CONFIG)):
        tensors.append(
            ttnn.from_torch(
                torch.randn(1, 1, 1024, 1024),
                dtype=ttnn.bfloat16,
                layout=ttnn.TILE_LAYOUT,
                device=device,
                memory_config=config,
            )
        )
        print(f"✓ 2 MiB in {name}: {allocated(device)}")
    total = ttnn.add(tensors[0], tensors[1])
    print(f"✓ their sum: {allocated(device)}")
    for tensor in (total, *tensors):
        ttnn.deallocate(tensor)
    clean = allocated(device) == (0, 0)
    print("✓ back to baseline" if clean else f"✗ still allocated: {allocated(device)}")
    ttnn.close_device(device)
    return 0 if clean else 1


def test_a_single_device_returns_to_its_baseline() -> None:
    assert main() == 0


if __name__ == "__main__":
    sys.exit(main())
