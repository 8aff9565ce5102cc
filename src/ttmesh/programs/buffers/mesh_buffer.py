"""MeshBuffer: memory at one address on every chip, holding copies of one buffer or the shards of a larger one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from ttmesh.base.dtypes import BufferType, ShardOrientation
from ttmesh.base.errors import MeshError, ShapeError, one_of
from ttmesh.base.geometry import MeshCoordinate
from ttmesh.chip.cells import Cell
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.buffers.buffer_configs import (
    DeviceLocalBufferConfig,
    MeshBufferConfig,
    MeshBufferLayout,
    ReplicatedBufferConfig,
    ShardedBufferConfig,
)
from ttmesh.programs.buffers.page_layout import (
    BufferShardingArgs,
    PageLayout,
    make_interleaved_layout,
    make_sharded_layout,
)


class MeshBuffer:
    """A view of a mesh-shard_columns buffer: its chips' bytes, pages and banks. Tensors may share the same buffer."""

    __slots__ = ("__weakref__", "_mesh", "buffer", "config", "local_config", "pages")

    def __init__(
        self,
        mesh: MeshDevice,
        buffer: Buffer,
        config: MeshBufferConfig,
        local_config: DeviceLocalBufferConfig,
        pages: PageLayout,
    ) -> None:
        self._mesh = weakref.ref(mesh)  # a buffer does not keep its mesh open
        self.buffer, self.config, self.local_config = buffer, config, local_config
        self.pages = _share_layout(buffer.cell.buffer_id, pages)

    @staticmethod
    def create(
        config: MeshBufferConfig,
        local_config: DeviceLocalBufferConfig,
        mesh_device: MeshDevice,
        address: int | None = None,
    ) -> MeshBuffer:
        """New memory on every chip, at the given address or at one that is free on all of them."""
        mesh_device.check_open()
        if isinstance(config, ShardedBufferConfig):
            _check_shards(config, mesh_device)
        kind, size, page = local_config.buffer_type, config.device_local_size, local_config.page_size
        pages = _make_layout(mesh_device, size, local_config)
        banks, heap = len(pages.banks), mesh_device.heap
        if address is not None:
            buffer = heap.allocate_at(kind, address, size, page, pages.bank_bytes, banks, "mesh buffer")
        else:
            buffer = heap.allocate(
                kind, size, page, pages.bank_bytes, banks, "mesh buffer", bottom_up=local_config.bottom_up
            )
        return MeshBuffer(mesh_device, buffer, config, local_config, pages)

    @staticmethod
    def of(
        buffer: Buffer,
        mesh_device: MeshDevice,
        config: MeshBufferConfig | None = None,
        sharding_args: BufferShardingArgs | None = None,
    ) -> MeshBuffer:
        """The buffer of a tensor seen as a mesh buffer: the same cell, so each sees what the other writes."""
        cell = buffer.cell
        local = DeviceLocalBufferConfig(cell.page_bytes, cell.buffer_type, sharding_args)
        chosen = config or ReplicatedBufferConfig(cell.size_bytes)
        if chosen.device_local_size != cell.size_bytes:
            raise ShapeError(
                f"a config of {chosen.device_local_size} B per chip for a buffer of {cell.size_bytes} B",
                expected="the buffer's own size",
                fix="Correct the config or leave it out.",
            )
        pages = _make_layout(mesh_device, cell.size_bytes, local)
        if len(pages.banks) != cell.banks or pages.bank_bytes > cell.bank_bytes:
            raise ShapeError(
                f"the buffer has {cell.banks} banks, {cell.bank_bytes} B each; the view has {len(pages.banks)} banks "
                f"of {pages.bank_bytes} B",
                expected="the same pages",
                fix="Pass the sharding_args of a sharded tensor.",
            )
        return MeshBuffer(mesh_device, buffer, chosen, local, pages)

    @property
    def cell(self) -> Cell:
        """The buffer's cell."""
        return self.buffer.cell

    def device(self) -> MeshDevice:
        """The mesh whose chips hold it."""
        mesh = self._mesh()
        if mesh is None or not self.buffer.is_allocated():
            raise MeshError(
                "Can't get device from mesh buffer, already deallocated",
                expected="a live buffer",
                fix="Use it before deallocate() and before its mesh is closed.",
            )
        return mesh

    def address(self) -> int:
        """The address on every chip, in every bank."""
        return self.cell.address

    def size(self) -> int:
        """Bytes of the whole buffer; replicated: of one copy."""
        return self.config.global_size if isinstance(self.config, ShardedBufferConfig) else self.config.size

    def device_local_size(self) -> int:
        """Bytes per chip."""
        return self.cell.size_bytes

    @property
    def page_size(self) -> int:
        """Bytes of a page."""
        return self.pages.page_bytes

    @property
    def num_pages(self) -> int:
        """Pages per chip."""
        return self.pages.pages

    @property
    def buffer_type(self) -> BufferType:
        """The type of its memory."""
        return self.local_config.buffer_type

    def global_layout(self) -> MeshBufferLayout:
        """Replicated or sharded."""
        sharded_ = isinstance(self.config, ShardedBufferConfig)
        return MeshBufferLayout.SHARDED if sharded_ else MeshBufferLayout.REPLICATED

    def global_shard_spec(self) -> ShardedBufferConfig:
        """The sharding of a sharded buffer."""
        if isinstance(self.config, ShardedBufferConfig):
            return self.config
        raise MeshError(
            "Can only query the global shard spec for a sharded MeshBuffer",
            expected="a sharded buffer",
            fix="Ask global_layout() first.",
        )

    def get_device_buffer(self, device_coord: MeshCoordinate) -> DeviceBuffer:
        """The buffer of one chip."""
        mesh = self.device()
        return DeviceBuffer(self, device_coord, mesh.get_device_id(device_coord))

    def is_allocated(self) -> bool:
        """Whether the memory is still held."""
        return self.buffer.is_allocated()

    def deallocate(self) -> None:
        """Free the memory on every chip; a second call does nothing."""
        self.buffer.deallocate()

    def __repr__(self) -> str:
        return f"MeshBuffer({self.global_layout().name}, {self.size()} B, {self.buffer_type.name})"


@dataclass(frozen=True)
class DeviceBuffer:
    """A mesh buffer on one chip."""

    of: MeshBuffer
    coord: MeshCoordinate
    device_id: int

    def address(self) -> int:
        """The address, the same on every chip."""
        return self.of.address()

    def size(self) -> int:
        """Bytes on this chip."""
        return self.of.device_local_size()


_layouts: weakref.WeakValueDictionary[int, PageLayout] = weakref.WeakValueDictionary()  # by buffer id


def create_mesh_buffer(
    mesh: MeshDevice,
    layout: str = "replicated",
    *,
    global_shape: Sequence[int],
    shard_shape: Sequence[int] | None = None,
    datum_bytes: int = 2,
    page_size: int | None = None,
    buffer_type: BufferType = BufferType.DRAM,
    shard_orientation: ShardOrientation = ShardOrientation.ROW_MAJOR,
) -> MeshBuffer:
    """A mesh buffer of a two-dimensional array: every chip the whole ("replicated") or one shard ("sharded").

    Args:
        shard_shape: an extent of 0 replicates along that dimension; default: the array over the mesh's rows and columns.
        page_size: default: one row of what a chip holds.
    """
    if len(global_shape) != 2 or (shard_shape is not None and len(shard_shape) != 2):
        raise ShapeError(
            f"global_shape={tuple(global_shape)}, shard_shape={shard_shape}",
            expected="two extents each",
            fix="Pass (rows, columns).",
        )
    rows, columns = global_shape
    size = rows * columns * datum_bytes
    config: MeshBufferConfig
    if layout == "replicated":
        if shard_shape is not None:
            raise ShapeError("a replicated buffer has no shard_shape", expected="none", fix='Say layout="sharded".')
        config, width = ReplicatedBufferConfig(size), columns
    elif layout == "sharded":
        shard = (shard_shape[0], shard_shape[1]) if shard_shape else (rows // mesh.shape[0], columns // mesh.shape[1])
        config = ShardedBufferConfig(size, (rows, columns), shard, shard_orientation)
        width = config.physical_shard_shape[1]
    else:
        raise MeshError(
            f"layout={layout!r}", expected=one_of(["replicated", "sharded"]), fix="Pass one of the two as layout."
        )
    local = DeviceLocalBufferConfig(page_size or width * datum_bytes, buffer_type)
    return MeshBuffer.create(config, local, mesh)


def find_layout(cell: Cell, mesh: MeshDevice) -> PageLayout:
    """The layout of a live cell: that of its mesh buffer, else interleaved."""
    pages = _layouts.get(cell.buffer_id)
    if pages is not None:
        return pages
    banks = mesh.heap.map.banks[cell.buffer_type]
    if cell.banks != banks.count:
        raise MeshError(
            f"the buffer at {cell.buffer_type.name} address {cell.address} ({cell.label or 'unnamed'}) is sharded and "
            "its pages are not known here",
            expected="a MeshBuffer of it",
            fix="Keep MeshBuffer.of(buffer, mesh, sharding_args=...) while the program runs.",
        )
    return make_interleaved_layout(
        cell.size_bytes // cell.page_bytes, cell.page_bytes, banks.page_alignment, banks.count
    )


def _share_layout(buffer_id: int, pages: PageLayout) -> PageLayout:
    """The same layout object for all views of a buffer with equal layouts, kept as long as one of them lives."""
    if _layouts.get(buffer_id) == pages:
        return _layouts[buffer_id]
    _layouts[buffer_id] = pages
    return pages


def _make_layout(mesh: MeshDevice, size: int, local: DeviceLocalBufferConfig) -> PageLayout:
    page, banks = local.page_size, mesh.heap.map.banks[local.buffer_type]
    if page <= 0 or size % page:
        raise ShapeError(
            f"For valid non-interleaved buffers page size {page} must equal buffer size {size}. For interleaved-buffers, "
            "buffer size should be divisible by the page size",
            expected=f"a divisor of {size}",
            fix="Correct page_size.",
        )
    if local.sharding_args is None:
        return make_interleaved_layout(size // page, page, banks.page_alignment, banks.count)
    dram = local.buffer_type is BufferType.DRAM
    columns = mesh.compute_with_storage_grid_size().x
    pages = make_sharded_layout(size // page, page, banks.page_alignment, local.sharding_args, columns, dram=dram)
    if max(pages.banks) >= banks.count:
        raise ShapeError(
            f"sharding args name bank {max(pages.banks)} of {banks.count}",
            expected="cores of the compute grid",
            fix="Derive the grid from compute_with_storage_grid_size() or dram_grid_size().",
        )
    return pages


def _check_shards(config: ShardedBufferConfig, mesh: MeshDevice) -> None:
    (rows, columns), (shard_rows, shard_columns) = config.global_buffer_shape, config.physical_shard_shape
    if mesh.shape.dims() != 2:
        raise ShapeError(f"{mesh!r} is not two-dimensional", expected="rows and columns", fix="Open a 2D mesh.")
    if rows % shard_rows or columns % shard_columns:
        raise ShapeError(
            "Global buffer shape must be aligned with the shard shape: requested buffer shape: "
            f"({rows}, {columns}), shard shape: ({shard_rows}, {shard_columns})",
            expected="whole shards",
            fix="Pad the buffer or change the shard shape.",
        )
    shards = (rows // shard_rows) * (columns // shard_columns)
    if all(config.replicated_dims):
        shards *= mesh.get_num_devices()
    elif any(config.replicated_dims):
        shards *= mesh.shape[0 if config.shard_orientation is ShardOrientation.ROW_MAJOR else 1]
    if shards > mesh.get_num_devices():
        raise ShapeError(
            "The sharded tensor does not fit on the Mesh. Num shards in buffer "
            f"{shards}, Num Devices {mesh.get_num_devices()}",
            expected=f"at most {mesh.get_num_devices()} shards",
            fix="Use larger shards or a larger mesh.",
        )
