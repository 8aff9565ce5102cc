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
    header, indices = lay_out(tensor)
    write_file_of(path, encode_header(header), tensor, indices)


def lay_out(tensor: Tensor) -> tuple[TensorHeader, list[int]]:
    """The header of a host tensor's file, and the lanes it holds, in their order there; replicas are one."""
    lanes, spec, size = tensor.lanes, tensor.spec, tensor.spec.packed_size_bytes
    if size == 0:
        raise MeshError(
            "Unexpected empty buffer during tensor serialization",
            expected="a tensor with elements",
            fix=f"Leave the tensor of shape {list(spec.shape)} out.",
        )
    extents, block = lanes.shape[: tensor.mesh_shape.dims()], tensor.rank_block
    of_chip = {}
    for coord in tensor.local_coords():
        index = 0
        for at, extent in zip(coord if block is None else block.to_local(coord), extents, strict=True):
            index = index * extent + min(at, extent - 1)
        of_chip[coord] = index
    indices = sorted(set(of_chip.values()))  # a tensor on some chips holds nothing for the others
    stride = round_up(size, ALIGNMENT_BYTES)
    places = {index: i * stride for i, index in enumerate(indices)}
    shards = tuple(StoredShard(coord, places[index], size) for coord, index in of_chip.items())
    return TensorHeader(spec, tensor.mesh_shape, tensor.tensor_topology(), shards), indices


def write_file_of(path: Path, header: bytes, tensor: Tensor, indices: list[int]) -> None:
    """Replace a file by a header and these lanes of a host tensor."""
    spec = tensor.spec
    header += bytes(-(SIZE_BYTES + len(header)) % ALIGNMENT_BYTES)
    flat = tensor.lanes.detach().reshape(-1, *spec.shape)
    with replace_file(path) as file:
        file.write(len(header).to_bytes(SIZE_BYTES, "little") + header)
        for i, index in enumerate(indices):  # one at a time: all of them packed could be as much memory again
            file.write(bytes(-spec.packed_size_bytes % ALIGNMENT_BYTES) if i else b"")
            file.write(spec.to_bytes(flat[index][None], 1).cpu().contiguous().numpy().data)


def read_tensorbin(path: Path, device: MeshDevice | None) -> Tensor:
    """The host tensor of a file; a file that one rank wrote needs the mesh of which this rank holds the same block."""
    data, values = open_file(path)
    try:
        header = decode_header(data)
    except FlatbufferError as problem:
        raise report_damage(path, problem.wrong) from None
    return restore_tensor(path, header, values, device)


def open_file(path: Path) -> tuple[bytes, torch.Tensor]:
    """The header, and the bytes behind it, which are read from the disk when they are used."""
    try:
        whole = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.zeros(0, np.uint8)
    except (OSError, ValueError) as problem:
        raise MeshError(f'Cannot open "{path}": {problem}', expected="a file", fix="Correct the path.") from None
    if len(whole) < SIZE_BYTES:
        raise report_damage(path, f"it has {len(whole)} bytes", f'Tensor file "{path}" is too small to be valid')
    size = int.from_bytes(whole[:SIZE_BYTES].tobytes(), "little")
    if SIZE_BYTES + size > len(whole):
        sizes = f"(header_size={size}, file_size={len(whole)})"
        raise report_damage(path, "it ends early", f'Tensor file "{path}" is truncated or corrupt {sizes}')
    return whole[SIZE_BYTES : SIZE_BYTES + size].tobytes(), torch.from_numpy(whole[SIZE_BYTES + size :])


def restore_tensor(path: Path, header: TensorHeader, data: torch.Tensor, device: MeshDevice | None) -> Tensor:
    """The host tensor of a header and the bytes behind it; refused where the two do not fit."""
    spec, size = header.spec, header.spec.packed_size_bytes
    grid = np.full(tuple(header.mesh_shape), -1, dtype=np.int64)
    offsets: dict[int, int] = {}
    for shard in header.shards:
        if shard.size != size or shard.offset + size > data.numel():
            raise report_damage(
                path,
                f"{shard.size} bytes at {shard.offset} of {data.numel()} for a shard of {size} ({list(spec.shape)} "
                f"{spec.dtype.name})",
            )
        if grid[shard.coord] >= 0:
            raise report_damage(path, f"it has two shards for chip {list(shard.coord)}")
        grid[shard.coord] = offsets.setdefault(shard.offset, len(offsets))
    if not offsets:
        raise report_damage(path, "it has no shards")
    present = frozenset(shard.coord for shard in header.shards)
    presence = None if len(present) == grid.size else present
    block = None if presence is None else _find_block(path, header, present, device)
    if block is not None:
        presence = None
        grid = grid[tuple(slice(a, a + n) for a, n in zip(block.start, block.block_shape, strict=True))]
    grid = _fold_replicas(grid)
    first = data[next(iter(offsets)) :][:size]
    raw = torch.stack([data[offset : offset + size] for offset in offsets]) if len(offsets) > 1 else first[None]
    values = spec.from_bytes(raw, 1)
    if (order := grid.reshape(-1).tolist()) != list(range(len(offsets))):
        values = values[[max(index, 0) for index in order]]
    spec = _with_padding_found(spec, first)
    lanes = values.reshape(*grid.shape, *spec.shape)
    return Tensor.on_host(kind_of(spec, header.topology, presence), lanes, header.mesh_shape, block)


def _find_block(
    path: Path, header: TensorHeader, present: frozenset[tuple[int, ...]], device: MeshDevice | None
) -> RankBlock | None:
    """The block of the rank that wrote the file: its shards are some of those that the topology names."""
    if len(present) == len(header.topology.mesh_coords()):
        return None  # a tensor on these chips alone
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


def report_damage(path: Path, reason: str, text: str = "") -> MeshError:
    """The error of a file that is damaged, in TT-NN's words and then ours."""
    wrong = text or "Cannot validate tensor data; this most likely indicates data corruption."
    return MeshError(
        f"{wrong} {path}: {reason}"[:600],
        expected="a whole file of ttnn.dump_tensor",
        fix="Write it again.",
    )
