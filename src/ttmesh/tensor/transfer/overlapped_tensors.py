"""Several small tensors in one fused tensor's bytes: TT-NN's views of them, and their files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ttmesh.base.cores import CoreRangeSet
from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.chip.formats.tiles import Tile
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.flatbuffer_tables import FlatbufferError
from ttmesh.tensor.transfer.tensorbin_files import lay_out, open_file, report_damage, restore_tensor, write_file_of
from ttmesh.tensor.transfer.tensorbin_header import (
    FORMATS,
    SCHEMA,
    grid_fields,
    header_fields,
    parse_grid,
    parse_header,
    require_field,
)

SUFFIX = ".overlappedtensorbin"


class OverlappedTensor:
    """A tensor with its own shape, format and cores inside the bytes of a fused one, which only contains it."""

    def __init__(
        self,
        fused_tensor: Tensor,
        tensor_shape: Sequence[int],
        shard_shape: Sequence[int],
        core_range_set: CoreRangeSet,
        dtype: DataType,
        tile_shape: Sequence[int],
        byte_offset: int = 0,
        total_size: int = 0,
    ) -> None:
        for name, pair in (("tensor_shape", tensor_shape), ("shard_shape", shard_shape), ("tile_shape", tile_shape)):
            if len(pair) != 2:
                raise TypeError(
                    f"__init__(): incompatible function arguments: {name}={list(pair)}; expected two numbers"
                )
        self.fused_tensor, self.core_range_set, self.dtype = fused_tensor, core_range_set, dtype
        self.tensor_shape, self.shard_shape, self.tile_shape = (
            tuple(tensor_shape),
            tuple(shard_shape),
            tuple(tile_shape),
        )
        self.byte_offset, self.total_size = byte_offset, total_size

    def get_tile(self) -> Tile:
        """Its tile."""
        return Tile((self.tile_shape[0], self.tile_shape[1]))


def dump_overlapped_tensors(file_name: str | Path, views: Mapping[str, OverlappedTensor]) -> None:
    """Write views of one fused tensor, and the tensor once, to a file that TT-NN reads as well."""
    path = _check_file_name(file_name)
    if not views:
        raise MeshError("Need at least one view to serialize", expected="views by name", fix="Pass some.")
    fused = next(iter(views.values())).fused_tensor
    for i, view in enumerate(views.values()):
        if view.fused_tensor is not fused:
            raise MeshError(
                f"All OverlappedTensorViews must reference the same fused tensor (view {i} differs)",
                expected="views of one tensor",
                fix="Write a file for each fused tensor.",
            )
    host = fused.cpu()
    header, indices = lay_out(host)
    fields = {"fused_tensor": header_fields(header), "views": [_view_fields(*item) for item in views.items()]}
    try:
        write_file_of(path, SCHEMA.encode("OverlappedTensors", fields), host, indices)
    except OSError as problem:
        raise MeshError(
            f'Cannot open "{path}" for writing: {problem}',
            expected="a folder with enough space",
            fix="Choose another path.",
        ) from None


def load_overlapped_tensors(file_name: str | Path, device: MeshDevice | None = None) -> dict[str, OverlappedTensor]:
    """The views of a file by name; all of them hold one fused tensor, on the device if one is given."""
    path = _check_file_name(file_name)
    data, values = open_file(path)
    try:
        fields = SCHEMA.decode("OverlappedTensors", data)
        header = parse_header(require_field(fields["fused_tensor"], "fused tensor"))
        views = require_field(fields["views"] or None, "views")
        host = restore_tensor(path, header, values, device)
        fused = host if device is None else host.onto(device)
        return {view["name"] or "": _parse_view(view, fused) for view in views}
    except FlatbufferError as problem:
        wrong = "Cannot validate overlapped tensor data; this most likely indicates data corruption."
        raise report_damage(path, problem.wrong, wrong) from None


def _view_fields(name: str, view: OverlappedTensor) -> dict[str, Any]:
    return {
        "name": name,
        "tensor_shape_h": view.tensor_shape[0],
        "tensor_shape_w": view.tensor_shape[1],
        "shard_shape_h": view.shard_shape[0],
        "shard_shape_w": view.shard_shape[1],
        "core_range_set": grid_fields(view.core_range_set),
        "dtype": FORMATS.index(view.dtype),
        "tile_h": view.tile_shape[0],
        "tile_w": view.tile_shape[1],
        "byte_offset": view.byte_offset,
        "total_size": view.total_size,
    }


def _parse_view(fields: dict[str, Any], fused: Tensor) -> OverlappedTensor:
    if fields["dtype"] >= len(FORMATS):
        raise FlatbufferError(f"data type {fields['dtype']} is none")
    return OverlappedTensor(
        fused,
        (fields["tensor_shape_h"], fields["tensor_shape_w"]),
        (fields["shard_shape_h"], fields["shard_shape_w"]),
        parse_grid(fields["core_range_set"]),
        FORMATS[fields["dtype"]],
        (fields["tile_h"], fields["tile_w"]),
        fields["byte_offset"],
        fields["total_size"],
    )


def _check_file_name(file_name: str | Path) -> Path:
    if not str(file_name).endswith(SUFFIX):
        raise MeshError(
            f"File {file_name} must have {SUFFIX} extension", expected=f"a name ending in {SUFFIX}", fix="Rename it."
        )
    return Path(file_name)
