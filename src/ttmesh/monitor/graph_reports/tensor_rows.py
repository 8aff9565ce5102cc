"""Rows about tensors and buffers of a capture."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

Json = Mapping[str, Any]
LAYOUTS = {"INTERLEAVED": 0, "HEIGHT_SHARDED": 1, "WIDTH_SHARDED": 2, "BLOCK_SHARDED": 3}
DRAM = 0


class TensorRow(NamedTuple):
    """A row of `tensors`."""

    tensor_id: int
    shape: str | None
    dtype: str | None
    layout: str | None
    memory_config: str | None
    device_id: int | None
    address: int | None
    buffer_type: int | None  # None for host tensors: 0 is DRAM
    rank: int
    storage_type: str | None


class BufferRow(NamedTuple):
    """A buffer that is allocated now: a row of `buffers` without operation and rank."""

    device_id: int
    address: int
    max_size_per_bank: int
    buffer_type: int
    buffer_layout: int


def read_int(params: Json, key: str) -> int | None:
    """A number that a report may write as text."""
    value = params.get(key)
    return None if value is None else int(value)


def make_tensor_row(tensor_id: int, params: Json, rank: int) -> TensorRow:
    """The row of a tensor; older reports have no storage type, but only device tensors have a memory config or address."""
    memory_config, address = params.get("memory_config"), read_int(params, "address")
    on_device = memory_config is not None or address is not None
    return TensorRow(
        tensor_id,
        params.get("shape", ""),
        _dotted(params.get("dtype")),
        _dotted(params.get("layout")),
        memory_config,
        read_int(params, "device_id"),
        address,
        read_int(params, "buffer_type"),
        rank,
        params.get("storage_type") or ("DEVICE" if on_device else None),
    )


def make_device_tensor_rows(tensor_id: int, params: Json, rank: int) -> list[tuple[int, int, int, int]]:
    """Where the tensor is on each device."""
    shards = json.loads(params.get("device_tensors") or "[]")
    return [(tensor_id, on.get("mesh_device_id", on.get("device_id")), on.get("address"), rank) for on in shards]


def make_buffer_row(params: Json, devices: Mapping[int, Json]) -> BufferRow:
    """A buffer that was allocated."""
    device, kind = read_int(params, "device_id") or 0, read_int(params, "buffer_type") or 0
    layout = params.get("layout", "INTERLEAVED")
    bank_bytes = read_int(params, "max_size_per_bank")
    if bank_bytes is None:
        bank_bytes = _compute_bank_bytes(params, kind, layout, devices.get(device, {}))
    return BufferRow(device, read_int(params, "address") or 0, bank_bytes, kind, LAYOUTS.get(layout, 0))


def number_uses(rows: Iterable[Sequence[int]], known: Container[int]) -> list[tuple[int, int, int, int]]:
    """Rows of input or output tensors: each tensor once per operation, without unknown ones, numbered again."""
    uses: dict[int, dict[int, int]] = {}
    for operation, _, tensor, rank in rows:
        if tensor in known:
            uses.setdefault(operation, {}).setdefault(tensor, rank)
    return [
        (operation, i, tensor, rank)
        for operation, tensors in uses.items()
        for i, (tensor, rank) in enumerate(tensors.items())
    ]


def _dotted(name: str | None) -> str | None:
    return name.replace("::", ".") if name else name


def _compute_bank_bytes(params: Json, kind: int, layout: str, device: Json) -> int:
    """Bytes in the fullest bank, for reports that do not have the allocator's own number."""
    size, page_bytes = read_int(params, "size") or 0, read_int(params, "page_size") or 0
    if layout == "INTERLEAVED":
        banks = int(device.get("num_dram_channels" if kind == DRAM else "l1_num_banks", 0))
    else:
        banks = read_int(params, "num_cores") or 0
    if size <= 0 or page_bytes <= 0 or banks <= 0:
        return size
    return math.ceil(size // page_bytes / banks) * page_bytes
