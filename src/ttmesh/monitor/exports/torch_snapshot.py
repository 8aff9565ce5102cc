"""A snapshot that torch's memory viewer opens (pytorch.org/memory_viz, torch.cuda._memory_viz)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from ttmesh.tracking.spans import Span, holes
from ttmesh.tracking.state import POOLS, Buffers, BufferState, DeviceState

POOL_OFFSET = 1 << 48  # torch has one address space per device: L1 is placed far above DRAM in it


def to_torch_snapshot(devices: list[DeviceState], buffers_of: Callable[[DeviceState], Buffers]) -> bytes:
    """One segment per pool, in addresses and bytes of one bank, as a pickle of plain values.

    Every process has the chip's addresses for itself, so each pair of device and process is a device of the snapshot.
    """
    segments: list[dict[str, Any]] = []
    traces: list[list[dict[str, Any]]] = []
    for device in devices:
        held = buffers_of(device).buffers
        for pid in sorted({b.pid for b in held}):
            own = [b for b in held if b.pid == pid]
            for number, name in enumerate(POOLS):
                pool = sorted((b for b in own if b.buffer_type in POOLS[name]), key=lambda b: b.address)
                segments.append(_segment(len(traces), device.pools[name].bank, pool, number * POOL_OFFSET))
            traces.append([_event(b) for b in sorted(own, key=lambda b: (b.time_ns, b.buffer_id))])
    snapshot = {"segments": segments, "device_traces": traces, "allocator_settings": {}, "external_annotations": []}
    return pickle.dumps(snapshot)


def _segment(index: int, bank: Span, buffers: list[BufferState], offset: int) -> dict[str, Any]:
    taken = [Span(b.address, b.address + b.bank_bytes) for b in buffers]
    used = sum(span.length for span in taken)
    blocks = [_block(b.address + offset, b.bank_bytes, "active_allocated", _frames(b)) for b in buffers]
    blocks += [_block(hole.start + offset, hole.length, "inactive", []) for hole in holes(bank, taken)]
    return {
        "device": index,
        "address": bank.start + offset,
        "total_size": bank.length,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": sorted(blocks, key=lambda block: block["address"]),
    }


def _block(address: int, size: int, state: str, frames: list[dict[str, Any]]) -> dict[str, Any]:
    return {"address": address, "size": size, "requested_size": size, "state": state, "frames": frames}


def _event(buffer: BufferState) -> dict[str, Any]:
    pool = next(number for number, name in enumerate(POOLS) if buffer.buffer_type in POOLS[name])
    return {
        "action": "alloc",
        "addr": buffer.address + pool * POOL_OFFSET,
        "size": buffer.bank_bytes,
        "stream": 0,
        "time_us": buffer.time_ns // 1000,
        "frames": _frames(buffer),
    }


def _frames(buffer: BufferState) -> list[dict[str, Any]]:
    frames = []
    for line in buffer.site.splitlines():
        place, _, function = line.rpartition(" in ")
        name, _, number = place.rpartition(":")
        frames.append({"filename": name, "line": int(number) if number.isdigit() else 0, "name": function})
    label = f"{buffer.buffer_type} {buffer.label}".rstrip()
    return [{"filename": f"pid {buffer.pid}", "line": 0, "name": label}, *frames]
