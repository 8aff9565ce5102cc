"""Seed 001's long-running test: one tensor stays while others come and go, round after round.

python examples/test_persistent_memory.py [SECONDS]
"""

from __future__ import annotations

import sys
import time

import torch

import ttmesh.ttnn as ttnn


def in_use(device: ttnn.MeshDevice) -> int:
    """Bytes of DRAM per bank."""
    return ttnn.get_memory_view(device, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank


def main(seconds: float = 10.0) -> int:
    device = ttnn.open_device(device_id=0)
    kept = ttnn.from_torch(torch.randn(1, 1, 512, 512), dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device)
    address, steady = (
        kept.buffer_address(),
        ttnn.get_memory_view(device, ttnn.BufferType.DRAM).total_bytes_allocated_per_bank,
    )
    deadline, rounds, peak = time.monotonic() + seconds, 0, steady
    while rounds == 0 or time.monotonic() < deadline:
        result = ttnn.relu(ttnn.add(kept, kept))
        peak = max(peak, in_use(device))
        ttnn.deallocate(result)
        rounds += 1
    after = in_use(device)
    print(
        f"{rounds} rounds; kept at {address}; {steady} B per bank between rounds, {peak} B at most, {after} B at the end"
    )
    ttnn.close_device(device)
    return 0 if after == steady else 1


def test_memory_does_not_grow() -> None:
    assert main(seconds=0.2) == 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])) if len(sys.argv) > 1 else main())
