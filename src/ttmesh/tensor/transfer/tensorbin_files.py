"""Tensors in .tensorbin files as TT-NN writes them: the header's size, the header, the packed values of every chip."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from ttmesh.base.atomic_files import replace_file
from ttmesh.base.dtypes import FLOATS
from ttmesh.base.errors import MeshError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.shard_config import round_up
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.flatbuffer_tables import FlatbufferError
from ttmesh.tensor.transfer.tensorbin_header import StoredShard, TensorHeader, decode_header, encode_header

SIZE_BYTES = 8  # of the number in front: how long the header is
ALIGNMENT_BYTES = 64  # of the values of every shard in the file, as TT-NN 0.81 writes them


def write_tensorbin(path: Path, tensor: Tensor) -> None:
    """Replace a file by a host tensor; raises OSError where it cannot be written, and leaves it as it was."""
    lanes, spec, size = tensor.lanes, tensor.spec, tensor.spec.packed_size_bytes
    if size == 0:
        raise MeshError(
            "Unexpected empty buffer during tensor serialization",
            expected="a tensor with elements",
            fix=f"Leave the tensor of shape {list(spec.shape)} out.",
        )
    axes = tensor.mesh_shape.dims()
    grid, block = lanes.shape[:axes], tensor.rank_block
    shards = []
    for coord in tensor.local_coords():
        local = coord if block is None else block.to_local(coord)
        index = 0
        for at, extent in zip(local, grid, strict=True):
            index = index * extent + min(at, extent - 1)
        shards.append(StoredShard(coord, index * size, size))
    used = sorted({shard.offset for shard in shards})  # a tensor that lies on some chips holds nothing for the others
    stride = round_up(size, ALIGNMENT_BYTES)
    places = {offset: i * stride for i, offset in enumerate(used)}
    stored = tuple(StoredShard(shard.coord, places[shard.offset], size) for shard in shards)
    header = encode_header(TensorHeader(spec, tensor.mesh_shape, tensor.tensor_topology(), stored))
    header += bytes(-(SIZE_BYTES + len(header)) % ALIGNMENT_BYTES)
    flat = lanes.detach().reshape(-1, *spec.shape)
    with replace_file(path) as file:
        file.write(len(header).to_bytes(SIZE_BYTES, "little") + header)
        for offset in used:  # one at a time: all of them packed could be as much memory again
            file.write(bytes(stride - size) if offset != used[0] else b"")
            packed = spec.to_bytes(flat[offset // size][None], 1)
            file.write(packed.cpu().contiguous().numpy().data)


def read_tensorbin(path: Path, device: MeshDevice | None) -> Tensor:
    """The host tensor of a file; a file that one rank wrote needs the mesh of which this rank holds the same block."""
    header, data = _read_header(path)
    spec, size = header.spec, header.spec.packed_size_bytes
    grid = np.full(tuple(header.mesh_shape), -1, dtype=np.int64)
    offsets: dict[int, int] = {}
    for shard in header.shards:
        if shard.size != size or shard.offset + size > data.numel():
            raise _damaged(
                path,
                f"{shard.size} bytes at {shard.offset} of {data.numel()} for a shard of {size} ({list(spec.shape)} "
                f"{spec.dtype.name})",
            )
        if grid[shard.coord] >= 0:
            raise _damaged(path, f"it has two shards for chip {list(shard.coord)}")
        grid[shard.coord] = offsets.setdefault(shard.offset, len(offsets))
    if not offsets:
        raise _damaged(path, "it has no shards")
    present = frozenset(shard.coord for shard in header.shards)
    presence = None if len(present) == grid.size else present
    block = None if presence is None else _find_block(path, header, present, device)
    if block is not None:
        presence = None
        grid = grid[tuple(slice(a, a + n) for a, n in zip(block.start, block.block_shape, strict=True))]
    grid = _fold_replicas(grid)
    raw = torch.stack([data[offset : offset + size] for offset in offsets]) if len(offsets) > 1 else None
    values = spec.from_bytes(data[next(iter(offsets)) :][:size][None] if raw is None else raw, 1)
    if (order := grid.reshape(-1).tolist()) != list(range(len(offsets))):
        values = values[[max(index, 0) for index in order]]
    spec = _with_padding_found(spec, data[next(iter(offsets)) :][:size])
    lanes = values.reshape(*grid.shape, *spec.shape)
    return Tensor.on_host(kind_of(spec, header.topology, presence), lanes, header.mesh_shape, block)


def _read_header(path: Path) -> tuple[TensorHeader, torch.Tensor]:
    """The header, and the bytes behind it, which are read from the disk when they are used."""
    try:
        whole = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)
    except (OSError, ValueError) as problem:
        raise MeshError(f'Cannot open "{path}": {problem}', expected="a file", fix="Correct the path.") from None
    if len(whole) < SIZE_BYTES:
        raise _damaged(path, f"it has {len(whole)} bytes", f'Tensor file "{path}" is too small to be valid')
    size = int.from_bytes(whole[:SIZE_BYTES].tobytes(), "little")
    if SIZE_BYTES + size > len(whole):
        sizes = f"(header_size={size}, file_size={len(whole)})"
        raise _damaged(path, "it ends early", f'Tensor file "{path}" is truncated or corrupt {sizes}')
    try:
        header = decode_header(whole[SIZE_BYTES : SIZE_BYTES + size].tobytes())
    except FlatbufferError as problem:
        raise _damaged(path, problem.wrong) from None
    return header, torch.from_numpy(whole[SIZE_BYTES + size :])


def _find_block(
    path: Path, header: TensorHeader, present: frozenset[tuple[int, ...]], device: MeshDevice | None
) -> RankBlock | None:
    """The block of the rank that wrote the file: its shards are some of those that the topology names."""
    if len(present) == len(header.topology.mesh_coords()):
        return None  # a tensor that lies on these chips alone
    block = None if device is None else device.rank_block
    shape = tuple(header.mesh_shape)
    if block is None or tuple(block.full_shape) != shape or {*filter(block.has_chip, np.ndindex(shape))} != present:
        raise MeshError(
            f"{path} holds the block {sorted(present)[0]} to {sorted(present)[-1]} of {header.mesh_shape!r}, written by "
            "one rank",
            expected="device=, a mesh of which this rank holds the same block",
            fix="Write it with DumpTensorMode.DISTRIBUTED_GATHER to read it anywhere.",
        )
    return block


def _fold_replicas(
    grid: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """The grid with length 1 along every axis on which all chips have the same bytes; -1 where there is no chip."""
    for axis in range(grid.ndim):
        first = grid.max(axis, keepdims=True)
        if ((grid == first) | (grid < 0)).all():
            grid = first
    return grid


def _with_padding_found(spec: TensorSpec, raw: torch.Tensor) -> TensorSpec:
    """The spec with the value that fills its padding, which the header does not say, where it is one and not 0."""
    padded, shape = tuple(spec.padded_shape), spec.shape.to_rank(len(spec.padded_shape))
    whole = spec.with_shape(padded)
    if padded == tuple(shape) or whole.packed_size_bytes != spec.packed_size_bytes:
        return spec
    values = whole.from_bytes(raw[None], 1)[0]
    found = values[(-1,) * values.dim()].item()
    if found == 0 or found != found:
        return spec
    for dim, extent in enumerate(shape):
        if not (values.narrow(dim, extent, padded[dim] - extent) == found).all():
            return spec
    return spec.with_padding(padded, found if spec.dtype in FLOATS else int(found))


def _damaged(path: Path, reason: str, text: str = "") -> MeshError:
    wrong = text or "Cannot validate tensor data; this most likely indicates data corruption."
    return MeshError(
        f"{wrong} {path}: {reason}"[:600],
        expected="a whole file of ttnn.dump_tensor",
        fix="Write it again.",
    )
