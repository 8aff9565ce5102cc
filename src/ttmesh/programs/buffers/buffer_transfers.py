"""Host data into mesh buffers and back, through the command queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Cells, Command, CommandQueue
from ttmesh.mesh.queue.trace import make_capture_error
from ttmesh.programs.buffers.buffer_configs import MeshBufferLayout, ShardedBufferConfig
from ttmesh.programs.buffers.mesh_buffer import MeshBuffer

HostData = Any  # a torch tensor, a numpy array, bytes, or a sequence of 32-bit words as in TT-Metal


@dataclass(frozen=True)
class BufferRegion:
    """A range of a chip's bytes, in full pages."""

    offset: int
    size: int


def enqueue_write_mesh_buffer(
    buffer: MeshBuffer, data: HostData, *, blocking: bool = False, cq_id: int | None = None
) -> None:
    """Write a full buffer: the same bytes to every chip, or to each chip its shard."""
    everyone = MeshCoordinateRange(buffer.device().shape)
    enqueue_write_shard_to_sub_grid(buffer, data, everyone, blocking=blocking, cq_id=cq_id)


def enqueue_write_shard_to_sub_grid(
    buffer: MeshBuffer,
    data: HostData,
    device_range: MeshCoordinateRange,
    *,
    blocking: bool = False,
    region: BufferRegion | None = None,
    cq_id: int | None = None,
) -> None:
    """Write the same bytes to some chips of a replicated buffer (all or a region); a sharded one is written in full."""
    mesh = buffer.device()
    config = buffer.config
    if isinstance(config, ShardedBufferConfig):
        if region is not None or device_range != MeshCoordinateRange(mesh.shape):
            raise MeshError(
                "a sharded MeshBuffer cannot be written to a sub-grid or in part",
                expected="a replicated buffer, or the whole sharded one",
                fix="Use write_shard for one chip's shard.",
            )
        _write_shards(buffer, config, _to_bytes(data, config.global_size, buffer), blocking, cq_id)
        return
    where = _check_region(buffer, region)
    raw = _to_bytes(data, where.size, buffer).reshape(*(1 for _ in mesh.shape), where.size)
    _write(buffer, raw, _check_range(device_range, mesh), region and where, blocking, cq_id)


def write_shard(
    buffer: MeshBuffer,
    data: HostData,
    coord: MeshCoordinate,
    *,
    blocking: bool = False,
    region: BufferRegion | None = None,
    cq_id: int | None = None,
) -> None:
    """Write one chip's bytes, all of them or a region; where ranks divide the mesh, only the rank of that chip writes."""
    mesh = buffer.device()
    coord.to_linear_index(mesh.shape)
    where = _check_region(buffer, region)
    raw = _to_bytes(data, where.size, buffer).reshape(*(1 for _ in mesh.shape), where.size)
    _write(buffer, raw, MeshCoordinateRange(coord), region and where, blocking, cq_id)


def read_shard(
    buffer: MeshBuffer, coord: MeshCoordinate, *, region: BufferRegion | None = None, cq_id: int | None = None
) -> torch.Tensor:
    """One chip's bytes, all of them or a region, as a new uint8 tensor; `.view(dtype)` gives elements."""
    mesh = buffer.device()
    coord.to_linear_index(mesh.shape)
    where = _check_region(buffer, region)
    lanes = _read(buffer, cq_id, mesh.get_device_id(coord))
    position = coord.coords() if mesh.rank_block is None else mesh.rank_block.to_local(coord.coords())
    lane = lanes[tuple(0 if extent == 1 else at for at, extent in zip(position, lanes.shape, strict=False))]
    return lane[where.offset : where.offset + where.size].cpu().clone()


def enqueue_read_mesh_buffer(buffer: MeshBuffer, *, blocking: bool = True, cq_id: int | None = None) -> torch.Tensor:
    """The shards of a buffer merged into a new uint8 tensor; `.view(dtype)` gives elements. All ranks call it."""
    mesh, config = buffer.device(), buffer.config
    if buffer.global_layout() is not MeshBufferLayout.SHARDED and mesh.get_num_devices() > 1:
        raise _make_read_error(
            "Can only read a Sharded MeshBuffer from a MeshDevice or a Replicated MeshBuffer from a Unit-Mesh.",
            "Use read_shard for one chip's copy.",
        )
    if not blocking:
        raise _make_read_error(
            "Non-Blocking reads are not supported through enqueue_read_mesh_buffer. Use enqueue_read_shards_instead.",
            "Pass blocking=True.",
        )
    if not isinstance(config, ShardedBufferConfig):
        return _read(buffer, cq_id).reshape(-1).cpu().clone()
    if any(config.replicated_dims):
        raise _make_read_error(
            "Cannot read a MeshBuffer that is replicated along any dimension.", "Use read_shard for one chip's shard."
        )
    lanes = _read(buffer, cq_id).cpu()
    if mesh.rank_block is not None:
        lanes = mesh.rank_block.gather_all(lanes)
    lanes = lanes.expand(*mesh.shape, lanes.shape[-1])
    datum, (height, width) = config.compute_datum_size_bytes(), config.physical_shard_shape
    whole = torch.empty(
        config.global_buffer_shape[0], config.global_buffer_shape[1] * datum, dtype=torch.uint8, device="cpu"
    )
    for (y, x), coords in config.shards(mesh):
        shard = lanes[coords[0].coords()].reshape(height, width * datum)
        whole[y : y + height, x * datum : (x + width) * datum] = shard
    return whole.reshape(-1)


def enqueue_read_shards(
    buffer: MeshBuffer, coords: Iterable[MeshCoordinate], *, cq_id: int | None = None
) -> list[torch.Tensor]:
    """The bytes of several chips."""
    return [read_shard(buffer, coord, cq_id=cq_id) for coord in coords]


def enqueue_write_shards(
    buffer: MeshBuffer,
    shards: Iterable[tuple[MeshCoordinate, HostData]],
    *,
    blocking: bool = False,
    cq_id: int | None = None,
) -> None:
    """Write several chips, each its own bytes."""
    for coord, data in shards:
        write_shard(buffer, data, coord, blocking=blocking, cq_id=cq_id)


def _write(
    buffer: MeshBuffer,
    lanes: torch.Tensor,
    only: MeshCoordinateRange | None,
    region: BufferRegion | None,
    blocking: bool,
    cq_id: int | None,
) -> None:
    mesh = buffer.device()
    queue = _find_queue(mesh, cq_id, "Writes are not supported during trace capture.")
    chips = [mesh.chip_at(coord) for coord in only or MeshCoordinateRange(mesh.shape)]
    mesh.traffic.counters.from_host(chips, lanes.shape[-1])
    shape, cell, block = mesh.lane_shape, buffer.cell, mesh.rank_block
    first = (0,) * len(shape)
    if block is not None:
        lanes, first = block.narrow_to_block(lanes), block.start
        if only is not None:
            only = None if block.local_range is None else only.intersection(block.local_range)
            if only is None:
                return
    on_device = lanes.to(mesh.backend.device)

    def write_all(reads: Cells, writes: Cells) -> None:
        writes[0].write_bytes(on_device)

    def write_some(reads: Cells, writes: Cells) -> None:
        old = writes[0].read_bytes()
        new = (old.expand(*shape, old.shape[-1]) if only else old).clone()
        chosen = new.narrow(-1, region.offset if region else 0, on_device.shape[-1])
        if only:
            ends = zip(only.start_coord, only.end_coord, first, strict=True)
            chosen = chosen[tuple(slice(a - low, b + 1 - low) for a, b, low in ends)]
        chosen.copy_(on_device)
        writes[0].write_bytes(new)

    command = Command("write_mesh_buffer", write_some if only or region else write_all, (), (cell,))
    queue.enqueue(command)
    if blocking:
        queue.finish_through(command)


def _read(buffer: MeshBuffer, cq_id: int | None, chip: int | None = None) -> torch.Tensor:
    mesh = buffer.device()
    if mesh.rank_block is not None and mesh.rank_block.position is None:
        raise mesh.rank_block.make_absence_error()
    queue = _find_queue(mesh, cq_id, "Reads are not supported during trace capture.")
    seen: list[torch.Tensor] = []

    def body(reads: Cells, writes: Cells) -> None:
        seen.append(reads[0].read_bytes())

    command = Command("read_mesh_buffer", body, (buffer.cell,))
    queue.enqueue(command)
    queue.finish_through(command)
    mesh.backend.synchronize()
    mesh.traffic.counters.to_host(mesh.physical_ids if chip is None else [chip], buffer.device_local_size())
    return seen[0]


def _split_into_shards(
    config: ShardedBufferConfig, raw: torch.Tensor, mesh: MeshDevice
) -> list[tuple[MeshCoordinate, torch.Tensor]]:
    """The shards of a host array, each with the first chip that holds it."""
    datum, (height, width) = config.compute_datum_size_bytes(), config.physical_shard_shape
    rows = raw.reshape(config.global_buffer_shape[0], -1)
    return [
        (coords[0], rows[y : y + height, x * datum : (x + width) * datum].reshape(-1))
        for (y, x), coords in config.shards(mesh)
    ]


def _write_shards(
    buffer: MeshBuffer, config: ShardedBufferConfig, raw: torch.Tensor, blocking: bool, cq_id: int | None
) -> None:
    """One write of all lanes where every chip gets a shard, else chip by chip: the others keep their bytes."""
    mesh = buffer.device()
    placements = config.shards(mesh)
    shards = _split_into_shards(config, raw, mesh)
    if sum(len(coords) for _, coords in placements) < mesh.get_num_devices():
        for (_, coords), (_, shard) in zip(placements, shards, strict=True):
            for coord in coords:
                write_shard(buffer, shard, coord, blocking=blocking, cq_id=cq_id)
        return
    copied = [any(len({coord[axis] for coord in coords}) > 1 for _, coords in placements) for axis in (0, 1)]
    extents = [1 if copied[axis] else mesh.shape[axis] for axis in (0, 1)]
    lanes = torch.empty(*extents, config.device_local_size, dtype=torch.uint8, device="cpu")
    for coord, shard in shards:
        lanes[coord.coords()] = shard
    _write(buffer, lanes, None, None, blocking, cq_id)


def _check_range(device_range: MeshCoordinateRange, mesh: MeshDevice) -> MeshCoordinateRange | None:
    whole = MeshCoordinateRange(mesh.shape)
    if device_range.start_coord.dims() != mesh.shape.dims() or not whole.contains(device_range):
        raise ShapeError(
            f"{device_range!r} lies outside {mesh!r}",
            expected=f"a range inside {whole!r}",
            fix="Choose a smaller range.",
        )
    return None if device_range == whole else device_range


def _check_region(buffer: MeshBuffer, region: BufferRegion | None) -> BufferRegion:
    size, page = buffer.device_local_size(), buffer.page_size
    if region is None:
        return BufferRegion(0, size)
    for wrong, text in (
        (region.offset % page, "Region offset must be a multiple of page size"),
        (region.size % page, "Region size must be a multiple of page size"),
        (region.offset + region.size > size, "Region must be within buffer"),
    ):
        if wrong:
            raise ShapeError(
                f"{text}: {region}",
                expected=f"whole pages of {page} B in {size} B",
                fix="Round offset and size to pages inside the buffer.",
            )
    return region


def _to_bytes(data: HostData, size: int, buffer: MeshBuffer) -> torch.Tensor:
    """A copy of host data as bytes (TT-Metal copies at enqueue too)."""
    if isinstance(data, torch.Tensor):
        raw = data.detach().cpu().contiguous().reshape(-1).view(torch.uint8).clone()
    elif isinstance(data, (bytes, bytearray, memoryview)):
        raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    elif isinstance(data, np.ndarray):
        raw = torch.frombuffer(bytearray(np.ascontiguousarray(data).tobytes()), dtype=torch.uint8)
    else:
        raw = torch.frombuffer(bytearray(np.asarray(data, dtype=np.uint32).tobytes()), dtype=torch.uint8)
    if raw.numel() != size:
        raise ShapeError(
            f"{raw.numel()} B of host data for {size} B of {buffer!r}",
            expected=f"{size} B",
            fix="Pass data whose shape and dtype give this size.",
        )
    return raw


def _find_queue(mesh: MeshDevice, cq_id: int | None, text: str) -> CommandQueue:
    queue = mesh.queue(cq_id)
    if queue.recording is not None:
        trace = next(trace.id for trace in mesh.traces.values() if trace.commands is queue.recording)
        raise make_capture_error(text, trace)
    return queue


def _make_read_error(wrong: str, fix: str) -> MeshError:
    return MeshError(
        wrong, expected="a blocking read of a sharded buffer that no dim replicates, or of one chip's buffer", fix=fix
    )
