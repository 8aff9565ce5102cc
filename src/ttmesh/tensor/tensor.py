"""Tensor: values on a mesh or on the host, with their kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ttmesh.base.dtypes import Layout, StorageType
from ttmesh.base.errors import DeallocatedError, MeshError, ShapeError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.chip.formats.storage import torch_dtype
from ttmesh.mesh.allocation.heap import Buffer
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Command, CommandQueue
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.tensor import operators
from ttmesh.tensor.distribution import lane_transfers
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.distribution.composers import Composer, MeshToTensor
from ttmesh.tensor.distribution.constructors import built
from ttmesh.tensor.distribution.ingest import ONE_CHIP
from ttmesh.tensor.distribution.presence import DistributedTensor
from ttmesh.tensor.observer import observer
from ttmesh.tensor.spec import host_shapes, tensor_text
from ttmesh.tensor.spec.id_counters import tensor_ids
from ttmesh.tensor.spec.kind import Kind, kind_of
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor_html import draw_tensor
from ttmesh.tensor.torch_mixups import TorchMixups

_CONTIGUOUS = torch.contiguous_format
_new = object.__new__


class Tensor(DistributedTensor, TorchMixups):
    """On a device it is a kind and a buffer; on the host a kind and lanes. Tensors on one buffer share its contents.

    Lanes have one leading dimension per mesh axis (length 1 where every device has the same), then the local shape.
    """

    __slots__ = ("__weakref__", "_arriving", "_buffer", "_lanes", "_mesh", "_mesh_shape", "_rank_block", "_tensor_id")

    _buffer: Buffer | None
    _mesh: MeshDevice | None
    _lanes: torch.Tensor | None
    _mesh_shape: MeshShape | None  # of a host tensor: the mesh it was sharded for
    _rank_block: RankBlock | None  # of a host tensor: this rank's block of that mesh; not set on a device
    _arriving: tuple[CommandQueue, Command] | None
    _tensor_id: int | None

    def __init__(self, *args: Any, **given: Any) -> None:
        if len(args) == 4 and type(args[0]) is Kind:  # from launch, transfers and views
            self.kind, self._buffer, self._mesh, self._lanes = args
            self._mesh_shape = self._rank_block = self._arriving = self._tensor_id = None
        else:
            self._adopt(args[0] if args and isinstance(args[0], Tensor) else Tensor._built(*args, **given))

    @staticmethod
    def on_device(kind: Kind, buffer: Buffer, mesh: MeshDevice) -> Tensor:
        """A tensor over a buffer; what every operation makes of every result, in half the time that the class takes."""
        tensor = _new(Tensor)
        tensor.kind = kind
        tensor._buffer = buffer
        tensor._mesh = mesh
        tensor._lanes = tensor._mesh_shape = tensor._arriving = tensor._tensor_id = None
        return tensor

    @staticmethod
    def on_host(
        kind: Kind, lanes: torch.Tensor, mesh_shape: MeshShape = ONE_CHIP, rank_block: RankBlock | None = None
    ) -> Tensor:
        """A tensor that holds its values itself, sharded for a mesh of this shape (of which lanes are a rank's block)."""
        tensor = Tensor(kind, None, None, lanes)
        tensor._mesh_shape, tensor._rank_block = mesh_shape, rank_block
        return tensor

    @staticmethod
    def _built(*args: Any, **given: Any) -> Tensor:
        made, device, cq_id = built(*args, **given)
        host = Tensor.on_host(made.kind, made.lanes, made.mesh_shape, made.rank_block)
        return host if device is None else host.onto(device, None, cq_id)

    def _adopt(self, other: Tensor) -> None:
        self.kind, self._buffer, self._mesh, self._lanes = other.kind, other._buffer, other._mesh, other._lanes
        self._mesh_shape, self._arriving, self._tensor_id = other._mesh_shape, other._arriving, None
        self._rank_block = None if other._mesh is not None else other._rank_block

    @property
    def tensor_id(self) -> int:
        """A unique number of the tensor."""
        if self._tensor_id is None:
            self._tensor_id = tensor_ids.fetch_and_increment()
        return self._tensor_id

    @tensor_id.setter
    def tensor_id(self, value: int) -> None:
        self._tensor_id = value

    # -- where it is -----------------------------------------------------------------------------------------------

    def storage_type(self) -> StorageType:
        """HOST or DEVICE."""
        return StorageType.HOST if self._mesh is None else StorageType.DEVICE

    def device(self) -> MeshDevice | None:
        """The mesh that holds it, or None on the host."""
        return self._mesh

    def devices(self) -> list[MeshDevice | None]:
        """The same in a list, as TT-NN gives it."""
        return [self._mesh]

    @property
    def mesh_shape(self) -> MeshShape:
        """The mesh it is stored on, or was sharded for."""
        if self._mesh is not None:
            return self._mesh.shape
        return ONE_CHIP if self._mesh_shape is None else self._mesh_shape

    @property
    def rank_block(self) -> RankBlock | None:
        """This rank's block of that mesh where several ranks divide it."""
        return self._rank_block if self._mesh is None else self._mesh.rank_block

    @rank_block.setter
    def rank_block(self, block: RankBlock | None) -> None:
        self._rank_block = block

    @property
    def buffer(self) -> Buffer:
        """The buffer of a device tensor."""
        if self._buffer is None:
            raise DeallocatedError(
                "this tensor is on the host", expected="a tensor on a device", fix="Move it with to_device() first."
            )
        return self._buffer

    def is_allocated(self) -> bool:
        """Whether its values are still there."""
        if self._buffer is not None:
            return self._buffer.is_allocated()
        return self._lanes is not None or self._arriving is not None

    def check_allocated(self) -> None:
        """Refuse a device tensor whose memory was freed."""
        if self._buffer is not None and self._buffer._cell is None:
            self._buffer.cell  # noqa: B018  (raises)

    def deallocate(self, force: bool = False) -> None:
        """Free the memory: at once for every tensor on it when forced, else only if this is the last one."""
        if self._buffer is None:
            self._lanes = self._arriving = None
        elif force or sys.getrefcount(self._buffer) == 2:  # this attribute and the argument
            self._buffer.deallocate()

    def share(self) -> Tensor:
        """A second device tensor on the same memory, which unforced deallocation then keeps."""
        assert self._mesh is not None, "host tensors hold their values themselves"
        return Tensor.on_device(self.kind, self.buffer, self._mesh)

    def buffer_address(self) -> int:
        """Where it is stored, the same on every device."""
        return self.buffer.cell.address

    def buffer_unique_id(self) -> int:
        """A unique number of the buffer."""
        return self.buffer.cell.buffer_id

    def buffer_page_size(self) -> int:
        """Bytes of a page."""
        return self.kind.spec.page_size_bytes

    def buffer_num_pages(self) -> int:
        """Pages on one chip."""
        return self.kind.spec.num_pages

    def buffer_aligned_page_size(self) -> int:
        """Bytes of a page as the memory aligns them."""
        step = self.buffer.heap.map.banks[self.kind.spec.buffer_type].page_alignment
        return -(-self.buffer_page_size() // step) * step

    def host_buffer(self) -> host_shapes.HostBuffer:
        """The shards of a host tensor by coordinate."""
        if self._mesh is not None:
            raise _not_on_host("host_buffer")
        return host_shapes.HostBuffer(self, self.mesh_shape, self.rank_block, self.local_coords())

    # -- values ----------------------------------------------------------------------------------------------------

    @property
    def lanes(self) -> torch.Tensor:
        """The lanes of a host tensor; never change what you get."""
        if self._lanes is None and self._arriving is not None:
            queue, command = self._arriving
            queue.finish_through(command)
        if self._lanes is None:
            raise DeallocatedError(
                "Buffer is not allocated: this host tensor was freed"
                if self._mesh is None
                else "this tensor is on a device",
                expected="a tensor on the host",
                fix="Use it before deallocate()."
                if self._mesh is None
                else "Copy it to the host with from_device() first.",
            )
        return self._lanes

    @lanes.setter
    def lanes(self, values: torch.Tensor) -> None:
        self._lanes = values
        self._arriving = None

    def note_arrival(self, queue: CommandQueue, command: Command) -> None:
        """Note the command that brings the lanes."""
        if self._lanes is None:
            self._arriving = (queue, command)

    def cpu(self, blocking: bool = True, cq_id: int | None = None) -> Tensor:
        """The tensor on the host."""
        if self._mesh is None:
            return self
        result = Tensor(self.kind, None, None, None)
        result._mesh_shape, result._rank_block = self._mesh.shape, self._mesh.rank_block
        queue, command = lane_transfers.read(self._mesh, self.buffer.cell, self.kind.spec, result._arrive, cq_id)
        result.note_arrival(queue, command)
        if blocking:
            queue.finish_through(command)
        return result

    def _arrive(self, values: torch.Tensor) -> None:
        self.lanes = values

    def to(
        self, target: Any = None, mem_config: MemoryConfig | None = None, cq_id: int | None = None, **named: Any
    ) -> Tensor:
        """The tensor on a device, or in another layout."""
        for name in ("device", "target_layout", "layout"):
            target = named.pop(name, target)
        if named:
            raise TypeError(f"Tensor.to() takes no {sorted(named)}")
        if isinstance(target, Layout):
            return operators.call("to_layout", self, target)  # type: ignore[no-any-return]
        if not isinstance(target, MeshDevice):
            raise TypeError(f"Tensor.to({target!r}): expected a MeshDevice or a Layout")
        return self.onto(target, mem_config, cq_id)

    def onto(self, mesh: MeshDevice, memory_config: MemoryConfig | None = None, cq_id: int | None = None) -> Tensor:
        """The tensor on a mesh; a host tensor that no mapper sharded is copied to every device."""
        if self._mesh is not None:
            if self._mesh is not mesh:
                raise MeshError(
                    f"Currently do not support moving between devices: from {self._mesh!r} to {mesh!r}",
                    expected="a host tensor",
                    fix="Copy it to the host with from_device() first.",
                )
            return self
        if not isinstance(mesh, MeshDevice):
            raise TypeError(f"device={mesh!r} is a {type(mesh).__name__}; pass what open_mesh_device() returned")
        lanes, kind, shape, own_shape = self.lanes, self.kind, mesh.shape, self.mesh_shape
        spec = kind.spec if memory_config is None else kind.spec.with_memory_config(memory_config)
        if own_shape == shape:
            kind = kind_of(spec, kind.topology, kind.presence)
            lanes = lane_transfers.lanes_on(mesh, lanes, self._rank_block)
        elif own_shape.mesh_size() == 1:
            kind = kind_of(spec, TensorTopology.create_fully_replicated_tensor_topology(shape))
            lanes = lanes.reshape(*[1] * shape.dims(), *spec.shape)
        else:
            raise ShapeError(
                f"a host tensor sharded for {own_shape!r} does not fit {mesh!r}",
                expected=f"a tensor sharded for {shape!r}, or one that is not sharded",
                fix="Make the mapper from the mesh the tensor goes to.",
            )
        queue = lane_transfers.writable_queue(mesh, cq_id)
        buffer = mesh.heap.take(footprint_of(spec, mesh.heap.map), "to_device")
        sent = lane_transfers.write_on(queue, mesh, buffer.cell, spec, lanes)
        tensor = Tensor.on_device(kind, buffer, mesh)
        for watcher in observer.watchers:
            watcher.after_sending(self, sent)
            watcher.after_upload(tensor)
        return tensor

    def to_torch(
        self,
        mesh_composer: Composer | None = None,
        *,
        dtype: torch.dtype | None = None,
        cq_id: int | None = None,
    ) -> torch.Tensor:
        """The values as a new torch tensor; more than one shard needs a composer."""
        wanted = torch_dtype(self.kind.spec.dtype) if dtype is None else dtype
        mesh = self._mesh
        if (
            mesh is not None
            and mesh_composer is None
            and cq_id is None
            and mesh.runs_at_once()
            and mesh.backend.device.type == "cpu"
        ):
            lane = self.find_only_lane(self.buffer.cell.read(self.kind.spec), None)
            return lane.clone(memory_format=_CONTIGUOUS) if lane.dtype is wanted else lane.to(wanted)
        host = self.cpu(cq_id=cq_id)
        if mesh_composer is not None:
            return host.compose(mesh_composer, wanted)  # type: ignore[no-any-return]
        return host.only_shard().to(wanted, copy=True)

    def to_numpy(self, mesh_composer: MeshToTensor | None = None) -> np.ndarray[Any, Any]:
        """The values as a new numpy array; bfloat16 becomes float32."""
        values = self.to_torch(mesh_composer=mesh_composer)
        narrow = values.dtype in (torch.bfloat16, torch.float8_e4m3fn)
        return (values.float() if narrow else values).numpy()

    def to_list(self) -> Any:
        """The values as nested lists."""
        return self.to_torch().tolist()

    def to_torch_with_padded_shape(self) -> torch.Tensor:
        """The values with their padding."""
        lane = self.cpu().only_shard()
        return host_shapes.pad_values(lane, self.padded_shape, self.spec.pad_value).to(
            torch_dtype(self.dtype), copy=True
        )

    def item(self) -> int | float:
        """The only value."""
        if self.logical_volume() != 1:
            raise MeshError(
                f"tensor.item() requires tensor to have exactly one element, but got {self.logical_volume()} elements",
                expected="one element",
                fix="Index the tensor first.",
            )
        return self.to_torch().item()

    # -- shapes on the host ------------------------------------------------------------------------------------------

    def pad(self, output_tensor_shape: Sequence[int], input_tensor_start: Sequence[int], pad_value: float) -> Tensor:
        """The same values in a larger padded shape, moved to a start; row-major host tensors only."""
        self._check_host("padding")
        if self.layout is not Layout.ROW_MAJOR:
            return self  # TT-NN warns and returns it too
        window = host_shapes.shift_values(self.lanes, self.shape, input_tensor_start, pad_value)
        return self.make_host_tensor(self.spec.with_padding(output_tensor_shape, pad_value), window)

    def unpad(self, output_tensor_start: Sequence[int], output_tensor_end: Sequence[int]) -> Tensor:
        """The box between two corners (the end is exclusive)."""
        self._check_host("unpadding")
        rank = len(self.padded_shape)
        padded = host_shapes.pad_values(self.lanes, self.padded_shape, self.spec.pad_value)
        box = host_shapes.box(padded, rank, output_tensor_start, output_tensor_end)
        return self.make_host_tensor(self.spec.with_shape(box.shape[-rank:]), box)

    def pad_to_tile(self, pad_value: float) -> Tensor:
        """The same values with height and width padded to whole tiles."""
        self._check_host("pad_to_tile conversion")
        if self.layout is not Layout.ROW_MAJOR or len(self.shape) < 2:
            return self
        shape = [*self.shape[:-2], *(-(-extent // 32) * 32 for extent in self.shape[-2:])]
        return self.pad(shape, [0] * len(shape), pad_value)

    def unpad_from_tile(self, output_tensor_shape: Sequence[int]) -> Tensor:
        """The values in the front corner of this shape."""
        self._check_host("unpad_from_tile conversion")
        return self.unpad([0] * len(output_tensor_shape), output_tensor_shape)

    def _check_host(self, what: str) -> None:
        if self._mesh is not None:
            raise _not_on_host(what)

    def make_host_tensor(self, spec: TensorSpec, lanes: torch.Tensor) -> Tensor:
        """A host tensor with another spec and other lanes, distributed over the mesh as this one."""
        kind = kind_of(spec, self.kind.topology, self.kind.presence)
        return Tensor.on_host(kind, lanes, self.mesh_shape, self.rank_block)

    def reshape(self, *shape: Any) -> Tensor:
        """The same values in another shape."""
        wanted = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return operators.call("reshape", self, wanted)  # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> Tensor:
        return operators.call("getitem", self, key)  # type: ignore[no-any-return]

    def __bool__(self) -> bool:
        return True  # an object, as in TT-NN: `if tensor:` asks whether there is one

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if not self.is_allocated():
            return tensor_text.freed_text(self.spec)
        host = self.cpu()
        texts = [(coord, tensor_text.tensor_text(host.lane(coord), self.spec)) for coord in host.local_coords()]
        if self._mesh is None or self._mesh.get_num_devices() == 1:
            return "\n".join(text for _, text in texts)
        ids = ((self._mesh.get_device_id(MeshCoordinate(coord)), coord, text) for coord, text in texts)
        return "\n".join(f"device_id: {i}, {MeshCoordinate(coord)!r}\n{text}" for i, coord, text in ids)

    def _repr_html_(self) -> str:
        """What a notebook shows: the spec, and which slice is on which chip."""
        return draw_tensor(self)


def _not_on_host(what: str) -> MeshError:
    return MeshError(
        f"Tensor must be on host for {what}",
        expected="a host tensor",
        fix="Copy it to the host with from_device() first.",
    )


def _operator(name: str, *, swapped: bool = False) -> Callable[[Tensor, Any], Any]:
    def operate(self: Tensor, other: Any) -> Any:
        return operators.call(name, other, self) if swapped else operators.call(name, self, other)

    return operate


# TT-NN's own table (ttnn/__init__.py of tt-metal e4f9f0b), and the operators it leaves out that torch has.
for _dunder, _name in {
    "__add__": "add", "__radd__": "add", "__sub__": "subtract", "__rsub__": "rsub", "__mul__": "multiply",
    "__rmul__": "multiply", "__truediv__": "divide", "__rtruediv__": "rdiv", "__eq__": "eq", "__ne__": "ne",
    "__gt__": "gt", "__ge__": "ge", "__lt__": "lt", "__le__": "le", "__matmul__": "matmul", "__pow__": "pow",
}.items():  # fmt: skip
    setattr(Tensor, _dunder, _operator(_name))


def _negate(self: Tensor) -> Any:
    return operators.call("neg", self)


setattr(Tensor, "__neg__", _negate)  # noqa: B010
