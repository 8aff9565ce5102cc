"""Between torch, the host and a mesh: every copy a user can ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from ttmesh.base.argument_types import misfit, name_wrong_types, refuse_plain_values
from ttmesh.base.dtypes import BLOCK_FLOATS, ELEMENT_BYTES, FLOATS, DataType, Layout, float32
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.chip.formats.storage import lane_dtype
from ttmesh.chip.formats.tiles import Tile, tile_bytes
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import takes_queue
from ttmesh.mesh.queue.command_queue import Cells, Command
from ttmesh.tensor.calls.launch_op import report, separate
from ttmesh.tensor.calls.operation import Operation
from ttmesh.tensor.distribution import lane_transfers
from ttmesh.tensor.distribution.allocate import footprint_of
from ttmesh.tensor.distribution.composers import Composer, lane_at
from ttmesh.tensor.distribution.constructors import from_values
from ttmesh.tensor.distribution.ingest import as_torch
from ttmesh.tensor.observer import observer, transfer
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.device_conversion import upload_mapped
from ttmesh.tensor.transfer.device_tensors import Mapper, default_composer, default_mapper
from ttmesh.tensor.transfer.reallocation import copies_through_circular_buffer
from ttmesh.tensor.transfer.upload_plans import keep_plan, upload_again


@transfer("ttnn.from_torch")
@takes_queue
def from_torch(
    tensor: Any,
    dtype: DataType | None = None,
    *,
    spec: TensorSpec | None = None,
    tile: Tile | None = None,
    pad_value: float | None = None,
    layout: Layout | None = None,
    device: MeshDevice | None = None,
    memory_config: MemoryConfig | None = None,
    mesh_mapper: Mapper | None = None,
    cq_id: int | None = None,
    preserve_nan_values: bool = False,
    col_tilize: bool = False,
    enable_bfloat_opt: bool = False,
) -> Tensor:
    """Torch or numpy values as a tensor, on a device if one is given; the values are copied once, now. None gives None."""
    if tensor is None:
        return None  # type: ignore[return-value]  # an absent bias stays absent; callers who pass tensors get tensors
    is_plain = (
        device is not None
        and mesh_mapper is None
        and spec is None
        and tile is None
        and pad_value is None
        and cq_id is None
        and not (col_tilize or preserve_nan_values)
    )
    if is_plain:
        again = upload_again(tensor, dtype, layout, memory_config, device)
        if again is not None:
            return again
    refuse_plain_values("ttnn.from_torch", memory_config=memory_config, mesh_mapper=mesh_mapper, tile=tile)
    if not isinstance(tensor, (torch.Tensor, numpy.ndarray)):
        reason = (
            f"tensor is a {type(tensor).__name__}; pass a torch tensor or a numpy array: torch.tensor([1.0, 2.0]), say"
        )
        raise misfit("ttnn.from_torch", "tensor, dtype, layout, device, memory_config, mesh_mapper", reason)
    values = as_torch(tensor)
    if spec is not None:
        _check_spec(spec, values, dtype=dtype, layout=layout, memory_config=memory_config, tile=tile)
        dtype, layout, memory_config = spec.dtype, spec.layout, spec.memory_config
        tile = spec.tile if spec.layout is Layout.TILE else None
    if col_tilize:
        _check_col_tilize(spec, dtype, values, layout)
    config = memory_config
    if config is not None and config.is_sharded() and config.shard_spec is None and config.nd_shard_spec is None:
        raise _argument_error(
            "ttnn.from_torch: Shard spec must not be None for sharded tensors",
            "a shard spec",
            "Pass a memory_config with a shard spec.",
        )
    if dtype is DataType.FP8_E4M3 and values.dtype != torch.float32:
        raise _argument_error(
            f"ttnn.from_torch: source dtype {values.dtype} is not supported when target is ttnn.fp8_e4m3; only float32 "
            "input is supported. Cast to torch.float32 first.",
            "float32",
            "Convert the tensor with float() first.",
        )
    mapper = mesh_mapper or default_mapper.get()
    made, _, _ = from_values(
        values, dtype, None, layout, memory_config, tile, cq_id, pad_value, mapper,
        preserve_nan_values, col_tilize, enable_bfloat_opt,
        detach=observer.active or not _copies_at_once(values, device),
    )  # fmt: skip
    host = Tensor.on_host(made.kind, made.lanes, made.mesh_shape, made.rank_block)
    if observer.active and made.kind.spec.dtype in FLOATS:
        for watcher in observer.watchers:
            watcher.after_from_torch(
                host, lambda: from_values(values.float(), float32, mesh_mapper=mapper, col_tilize=col_tilize)[0].lanes
            )
    if device is None:
        result = host
    elif mapper is None or preserve_nan_values or col_tilize:
        result = host.onto(device, None, cq_id)
        if is_plain and mapper is None:
            keep_plan(values, dtype, layout, memory_config, result)
    else:
        result = upload_mapped(host, device, values.dtype, cq_id)
    if observer.active:
        given = {
            "dtype": dtype, "tile": tile, "pad_value": pad_value, "layout": layout, "device": device,
            "memory_config": memory_config, "mesh_mapper": mesh_mapper,
        }  # fmt: skip
        _report_transfer("ttnn.from_torch", (tensor,), given, result)
    return result


def _report_transfer(name: str, args: tuple[Any, ...], given: dict[str, Any], result: Any) -> None:
    """Tell watchers of a call; `given` holds its keywords, those that were left out as None."""
    for watcher in observer.watchers:
        watcher.after_transfer(name, args, {key: value for key, value in given.items() if value is not None}, result)


def _copies_at_once(values: torch.Tensor, device: MeshDevice | None) -> bool:
    """Whether an upload copies the values before it returns: from host memory to a GPU."""
    return values.is_cpu and isinstance(device, MeshDevice) and device.backend.device.type == "cuda"


@transfer("ttnn.to_torch")
@takes_queue
def to_torch(
    tensor: Tensor,
    dtype: torch.dtype | None = None,
    *,
    torch_rank: int | None = None,
    mesh_composer: Composer | None = None,
    device: MeshDevice | None = None,
    cq_id: int | None = None,
) -> Any:
    """The values as a new torch tensor (a list of them for ListMeshToTensor); copied once."""
    if mesh_composer is not None:
        refuse_plain_values("ttnn.to_torch", mesh_composer=mesh_composer)
    if device is not None and tensor.device() not in (None, device):
        raise _argument_error(
            f"ttnn.to_torch: the tensor is on {tensor.device()!r}",
            f"a tensor on {device!r}",
            "Pass the device of the tensor, or leave device out.",
        )
    values: Any = tensor.to_torch(mesh_composer=mesh_composer or default_composer.get(), dtype=dtype, cq_id=cq_id)
    if torch_rank is not None:
        is_list = isinstance(values, list)
        values = (
            [_squeeze_to_rank(one, torch_rank) for one in values] if is_list else _squeeze_to_rank(values, torch_rank)
        )
    if observer.active:
        given = {"dtype": dtype, "torch_rank": torch_rank, "mesh_composer": mesh_composer, "device": device}
        _report_transfer("ttnn.to_torch", (tensor,), given, values)
    return values


@transfer("ttnn.to_device")
@takes_queue
@name_wrong_types
def to_device(
    tensor: Tensor, device: MeshDevice, memory_config: MemoryConfig | None = None, *, queue_id: int | None = None
) -> Tensor:
    """A host tensor on a device, in interleaved DRAM unless a memory configuration is given."""
    refuse_plain_values("ttnn.to_device", memory_config=memory_config)
    moved = tensor.onto(device, memory_config or DRAM_MEMORY_CONFIG, queue_id)
    result = separate(moved) if moved is tensor else moved
    if observer.active:
        _report_transfer("ttnn.to_device", (tensor, device), {"memory_config": memory_config}, result)
    return result


@transfer("ttnn.from_device")
@takes_queue
@name_wrong_types
def from_device(tensor: Tensor, blocking: bool = True, *, queue_id: int | None = None) -> Tensor:
    """A device tensor on the host; without blocking its values arrive when they are first read."""
    host = tensor.cpu(blocking, queue_id)
    if observer.active:
        _report_transfer("ttnn.from_device", (tensor,), {}, host)
    return host


@takes_queue
def copy_host_to_device_tensor(host_tensor: Tensor, device_tensor: Tensor, cq_id: int | None = None) -> None:
    """Overwrite a device tensor with host values, at its address."""
    mesh, lanes = lanes_for(host_tensor, device_tensor)
    held, presence = host_tensor.kind.presence, device_tensor.kind.presence
    if held is not None and host_tensor.mesh_shape == mesh.shape:
        presence = held if presence is None else held & presence
    sent = lane_transfers.write(mesh, device_tensor.buffer.cell, device_tensor.spec, lanes, presence, cq_id)
    topology = host_tensor.kind.topology
    if topology is not device_tensor.kind.topology and host_tensor.mesh_shape == mesh.shape:  # as in TT-NN
        device_tensor.kind = kind_of(device_tensor.spec, topology, device_tensor.kind.presence)
    for watcher in observer.watchers:
        watcher.after_sending(host_tensor, sent)


def lanes_for(host_tensor: Tensor, device_tensor: Tensor) -> tuple[MeshDevice, torch.Tensor]:
    """Host lanes for a device tensor, checked against it; a tensor that is not sharded goes to every chip."""
    mesh = device_tensor.device()
    if mesh is None:
        raise _argument_error(
            "copy_host_to_device_tensor: the second tensor is on the host",
            "a device tensor",
            "Move it with to_device(), or allocate it on the device.",
        )
    _check_alike(host_tensor, device_tensor)
    if host_tensor.mesh_shape == mesh.shape:
        return mesh, lane_transfers.lanes_on(mesh, host_tensor.lanes, host_tensor.rank_block)
    if host_tensor.mesh_shape.mesh_size() == 1:
        return mesh, host_tensor.lanes.reshape(*(1 for _ in mesh.shape), *host_tensor.shape)
    raise _argument_error(
        f"a host tensor sharded for {host_tensor.mesh_shape!r} does not fit {mesh!r}",
        f"{mesh.shape!r}",
        "Shard it with a mapper of this mesh.",
    )


@takes_queue
def copy_device_to_host_tensor(
    device_tensor: Tensor, host_tensor: Tensor, blocking: bool = True, cq_id: int | None = None
) -> None:
    """Overwrite a host tensor with device values."""
    mesh = device_tensor.device()
    if mesh is None or host_tensor.device() is not None:
        raise _argument_error(
            "copy_device_to_host_tensor needs a device and a host tensor",
            "that order",
            "Pass the device tensor first and the host tensor second.",
        )
    _check_alike(host_tensor, device_tensor)
    coords = device_tensor.coords()
    if host_tensor.mesh_shape != mesh.shape and len(coords) != 1:
        raise _argument_error(
            f"a host tensor sharded for {host_tensor.mesh_shape!r} cannot take {mesh!r}",
            f"{mesh.shape!r}",
            "Allocate it with a mapper of this mesh.",
        )

    def keep(lanes: torch.Tensor) -> None:
        if host_tensor.mesh_shape != mesh.shape:
            own = lane_at(lanes, coords[0] if mesh.rank_block is None else mesh.rank_block.to_local(coords[0]))
            lanes = own.reshape(*(1 for _ in host_tensor.mesh_shape), *device_tensor.shape)
        else:
            host_tensor.rank_block = mesh.rank_block
        host_tensor.lanes = lanes

    queue, command = lane_transfers.read(mesh, device_tensor.buffer.cell, device_tensor.spec, keep, cq_id)
    if blocking:
        queue.finish_through(command)


@takes_queue
def allocate_tensor_on_device(*args: Any, **given: Any) -> Tensor:
    """Memory without values: `(tensor_spec, mesh_device)` or `(shape, dtype, layout, mesh_device, memory_config)`."""
    spec, mesh = _spec_and_mesh(*args, **given)
    topology = TensorTopology.replicated_along_axes(mesh.shape)
    mesh.check_open()
    buffer = footprint_of(spec, mesh.heap.map).allocate(mesh, "allocate_tensor_on_device")
    return Tensor.on_device(kind_of(spec, topology), buffer, mesh)


@takes_queue
def allocate_tensor_on_host(*args: Any, **given: Any) -> Tensor:
    """A host tensor of zeros, with a shard for every device of a mesh."""
    spec, mesh = _spec_and_mesh(*args, **given)
    lanes = torch.zeros((), dtype=lane_dtype(spec.dtype), device="cpu").expand(*(1 for _ in mesh.shape), *spec.shape)
    topology = TensorTopology.create_fully_replicated_tensor_topology(mesh.shape)
    return Tensor.on_host(kind_of(spec, topology), lanes, mesh.shape, mesh.rank_block)


@transfer("ttnn.deallocate")
@takes_queue
@name_wrong_types
def deallocate(tensor: Tensor, force: bool = True) -> None:
    """Free a tensor's memory, and with it that of every tensor on the same buffer."""
    tensor.deallocate(force)


@takes_queue
@name_wrong_types
def reallocate(tensor: Tensor, memory_config: MemoryConfig | None = None) -> Tensor:
    """The same values at a new address, after the old memory was freed; as they are, if another tensor is on it."""
    mesh = tensor.device()
    if mesh is None:
        raise _argument_error(
            "Expected Tensor with DeviceStorage, got StorageType::HOST: the tensor of ttnn.reallocate is on the host",
            "a device tensor",
            "Move it with to_device() first.",
        )
    source, old = tensor.spec, tensor.buffer.cell
    if memory_config is not None and memory_config.interleaved and not source.memory_config.interleaved:
        raise _argument_error(
            "Expected output tensor memory config to be sharded",
            "a sharded memory_config",
            "Use ttnn.to_memory_config to unshard it.",
        )
    spec = source if memory_config is None else source.with_memory_config(memory_config)
    tensor.deallocate(force=False)
    if tensor.is_allocated() and not source.memory_config.interleaved:
        raise _argument_error(
            "Expect input tensor to be deallocated after move op. Cannot deallocate before there is probably another "
            "consumer.",
            "a tensor that shares its memory with no other",
            "Delete the views of it first, or use ttnn.clone.",
        )
    if tensor.is_allocated():  # a view holds the memory, which stays where it is
        return tensor.share()
    buffer = footprint_of(spec, mesh.heap.map).allocate(mesh, "reallocate")
    stays = buffer.cell.address == old.address and spec.buffer_type is source.buffer_type
    if not stays:  # memory that comes to lie where it was takes no program
        places = old.address, buffer.cell.address
        buffered = copies_through_circular_buffer(spec, source.buffer_type, *places, mesh.heap.map)
        mesh.program_cache.compile("ttnn.reallocate", (("ttnn.reallocate", tensor.kind, spec, buffered),))

    def move(reads: Cells, writes: Cells) -> None:
        writes[0].write(reads[0].read(source), spec)

    mesh.launch(Command("ttnn.reallocate", move, (old,), (buffer.cell,), programs=0 if stays else 1))
    presence = tensor.kind.presence
    kept = not stays or presence is not None
    topology = tensor.kind.topology if kept else TensorTopology.replicated_along_axes(mesh.shape)
    moved = Tensor.on_device(kind_of(spec, topology, presence), buffer, mesh)
    report(_REALLOCATE, {"tensor": tensor}, moved)
    return moved


# Only what a tape records: the memory is moved above, because it frees its input first. `device_operation` belongs to ops.
_REALLOCATE = Operation(
    "ttnn.reallocate", lambda tensor: tensor, lambda call, _: call.specs, lane_arguments=frozenset({"tensor"})
)


@name_wrong_types
def get_memory_config(tensor: Tensor) -> MemoryConfig:
    """Where a tensor is stored on a chip."""
    return tensor.memory_config()


@name_wrong_types
def is_tensor_storage_on_device(tensor: Tensor) -> bool:
    """Whether it is on a device."""
    return tensor.device() is not None


@name_wrong_types
def is_sharded(tensor: Tensor) -> bool:
    """Whether its pages are dealt to cores in shards."""
    return bool(tensor.is_sharded())


@name_wrong_types
def has_tile_padding(tensor: Tensor, *, dim: int | None = None) -> bool:
    """Whether a dim is padded; without one, either of the last two (never for fewer dims)."""
    if dim is not None:
        at = dim if dim >= 0 else len(tensor.shape) + dim
        return bool(tensor.shape[at] != tensor.padded_shape[at])
    return len(tensor.shape) > 1 and tuple(tensor.shape[-2:]) != tuple(tensor.padded_shape[-2:])


def tile_size(dtype: DataType) -> int:
    """Bytes of a 32x32 tile of this format."""
    return tile_bytes(dtype)


def element_size(dtype: DataType) -> int:
    """Bytes of one element; for block floats there is no such number."""
    if dtype not in ELEMENT_BYTES:
        raise _argument_error(
            f"element_size: {dtype} is packed in blocks",
            "a format with a size per element",
            "Use a TensorSpec to compute sizes.",
        )
    return ELEMENT_BYTES[dtype]


@name_wrong_types
def has_storage_type_of(tensor: Tensor, storage_type: object) -> bool:
    """Whether it is on the host or a device, as asked."""
    return tensor.storage_type() == storage_type


def _spec_and_mesh(*args: Any, **given: Any) -> tuple[TensorSpec, MeshDevice]:
    if (args and isinstance(args[0], TensorSpec)) or "tensor_spec" in given:
        return _from_spec(*args, **given)
    return _from_parts(*args, **given)


def _from_spec(tensor_spec: TensorSpec, mesh_device: MeshDevice) -> tuple[TensorSpec, MeshDevice]:
    return tensor_spec, mesh_device


def _from_parts(
    shape: Sequence[int],
    dtype: DataType,
    layout: Layout,
    mesh_device: MeshDevice,
    memory_config: MemoryConfig | None = None,
) -> tuple[TensorSpec, MeshDevice]:
    return TensorSpec(shape, dtype, layout, memory_config=memory_config or DRAM_MEMORY_CONFIG), mesh_device


def _check_spec(spec: TensorSpec, values: torch.Tensor, **others: object) -> None:
    if tuple(spec.shape) != tuple(values.shape):
        raise _argument_error(
            f"ttnn.from_torch: spec shape {spec.shape} must be the same as tensor shape {values.shape}",
            "equal shapes",
            "Reshape the tensor, or pass another spec.",
        )
    for name, value in others.items():
        if value is not None:
            raise _argument_error(
                f"ttnn.from_torch: {name} must be None when spec is specified",
                f"no {name}",
                "Leave it out: the spec has it.",
            )


def _check_col_tilize(spec: object, dtype: DataType | None, values: torch.Tensor, layout: Layout | None) -> None:
    if spec is not None:
        raise _argument_error(
            "ttnn.from_torch: col_tilize=True is not supported with spec",
            "no spec",
            "Pass dtype and layout instead of a spec.",
        )
    if dtype not in BLOCK_FLOATS:
        raise _argument_error(
            "ttnn.from_torch: col_tilize=True requires BFP dtype (bfloat8_b or bfloat4_b)",
            "a block float",
            "Pass dtype=ttnn.bfloat8_b.",
        )
    if values.dim() < 2:
        raise _argument_error(
            "ttnn.from_torch: col_tilize=True requires tensor.ndim >= 2",
            "two dims or more",
            "Reshape it to two dims or more.",
        )
    if layout not in (None, Layout.TILE):
        raise _argument_error(
            "ttnn.from_torch: col_tilize=True requires layout to be None or ttnn.TILE_LAYOUT",
            "tiles",
            "Leave layout out.",
        )


def _check_alike(host: Tensor, device: Tensor) -> None:
    for name, one, other in (
        ("shape", host.shape, device.shape),
        ("dtype", host.dtype, device.dtype),
        ("page config", (host.layout, host.tile), (device.layout, device.tile)),
    ):
        if one != other:
            raise ShapeError(
                f"Host tensor has different {name}: {one}",
                expected=f"{other}, as on the device",
                fix="Make it with the shape, dtype and layout of the device tensor, or convert it first.",
            )


def _squeeze_to_rank(values: torch.Tensor, rank: int) -> torch.Tensor:
    while values.dim() > rank:
        if values.shape[0] != 1:
            raise _argument_error(
                "ttnn: Unable to squeeze to desired rank!",
                f"{values.dim() - rank} leading ones",
                "Reshape it with torch.reshape.",
            )
        values = values.squeeze(0)
    return values


def _argument_error(wrong: str, expected: str, fix: str) -> MeshError:
    return MeshError(wrong, expected=expected, fix=fix)
