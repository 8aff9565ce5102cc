"""rand, randn, uniform, dropout, bernoulli; the seed is fixed when a command is enqueued, so a trace repeats it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

from ttmesh.base.dtypes import DataType, Layout, bfloat16, float32
from ttmesh.base.errors import MeshError, NotEmulatedError, one_of, require
from ttmesh.base.placement import Shard
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.ops.catalogue.definition import composite, device_operation, op
from ttmesh.ops.catalogue.spec_rules import Inferred, make_output_spec
from ttmesh.ops.creation.full import requested_spec
from ttmesh.ops.creation.uniform_range import inclusive_range
from ttmesh.ops.stages.movement_stages import tile_spec, typecast
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.distribution.mappers import MeshMapperConfig
from ttmesh.tensor.spec.distribution_shape import compute_distribution_to_mesh_mapping
from ttmesh.tensor.spec.memory_config import DRAM_MEMORY_CONFIG, MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

GENERATED = (
    DataType.BFLOAT16, DataType.FLOAT32, DataType.UINT32, DataType.BFLOAT8_B, DataType.BFLOAT4_B, DataType.UINT16,
    DataType.INT32, DataType.INT8,
)  # fmt: skip


def draw_seed(seed: int | None, mesh: MeshDevice | None) -> int:
    """The seed, or a random one for 0 and None as in TT-NN; ranks that share a mesh use the first rank's."""
    if seed:
        return seed
    drawn = random.getrandbits(32) or 1
    block = None if mesh is None else mesh.rank_block
    return drawn if block is None or block.position is None else block.broadcast_number(drawn)


def _uniform(shape: Sequence[int], low: float, high: float, seed: int, device: torch.device) -> torch.Tensor:
    if device.type == "meta":
        return torch.empty(tuple(shape), device=device, dtype=torch.float32)
    generator = torch.Generator(device).manual_seed(seed)
    return (
        torch.rand(tuple(shape), generator=generator, device=device, dtype=torch.float32) * (high - low) + low
    ).clamp_(max=high)


def _rand_lane(
    spec: TensorSpec,
    mesh_dims: Sequence[int],
    rank_block: RankBlock | None,
    low: float,
    high: float,
    seed: int,
    torch_device: torch.device,
) -> torch.Tensor:
    lanes = _uniform((*mesh_dims, *spec.shape), low, high, seed, torch_device)
    return (
        lanes if rank_block is None else rank_block.narrow_to_block(lanes).clone()
    )  # all ranks draw the same numbers and keep their block


def _requested_topology(call: Call) -> TensorTopology:
    topology: TensorTopology = call["topology"]
    return topology


def _random_stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    """Tiles of floats are drawn; other formats are cast from float32, rows are untilized."""
    final, c = results[0], Composition()
    dtype = final.dtype if final.dtype in (bfloat16, float32) else float32
    if final.memory_config.is_sharded() or (dtype is final.dtype and final.layout is Layout.TILE):
        return None
    drawn = tile_spec(final.shape, dtype, final.memory_config)
    c.launch((call.name, drawn))
    made = c.allocate(drawn)
    if dtype is not final.dtype:
        made = c.replace(made, typecast(c, made, final.dtype))
    if final.layout is Layout.ROW_MAJOR:
        made = c.replace(made, c.run("untilize", final, made))
    return c, [made]


RAND = device_operation(
    "ttnn.rand",
    out=requested_spec,
    stages=_random_stages,
    topology=_requested_topology,
    runtime=(
        "low",
        "high",
        "seed",
    ),
)(_rand_lane)


@composite("ttnn.rand")
def rand(
    shape: Sequence[int],
    device: MeshDevice,
    dtype: DataType | None,
    layout: Layout | None,
    memory_config: MemoryConfig | None,
    low: float,
    high: float,
    seed: int,
    mesh_mapper: MeshMapperConfig | None,
) -> Tensor:
    """Numbers in [low, high): the same on every device, or different per shard with a mesh_mapper."""
    result_dtype = dtype or bfloat16
    wrong = f"[ttnn::rand] Output dtype {result_dtype} is not supported."
    require(result_dtype in GENERATED, wrong, one_of(GENERATED), "Pass one of these formats.")
    low, high = inclusive_range(low, high, result_dtype)
    mesh_dims, topology = (
        [1] * device.shape.dims(),
        TensorTopology.replicated_along_axes(device.shape),
    )
    local = list(shape)
    if mesh_mapper is not None:
        mesh_dims, topology = _shard_over_mesh(mesh_mapper, device, local)
    spec = _spec(local, result_dtype, layout, memory_config)
    result: Tensor = RAND(
            spec=spec, mesh_dims=tuple(mesh_dims), rank_block=device.rank_block, low=low, high=high,
            seed=draw_seed(seed, device), topology=topology, device=device,
        )  # fmt: skip
    return result


def _shard_over_mesh(
    mapper: MeshMapperConfig, device: MeshDevice, local: list[int]
) -> tuple[list[int], TensorTopology]:
    """Mesh dims and topology of a sharded tensor; changes the local shape in place."""
    mesh_shape = mapper.mesh_shape_override or device.shape
    placements = mapper.placements
    wrong = f"ttnn::rand: placements size ({len(placements)}) must match mesh dimensions ({mesh_shape.dims()})"
    require(
        len(placements) == mesh_shape.dims(),
        wrong,
        f"{mesh_shape.dims()} placements",
        "Pass one placement per mesh axis.",
    )
    if mesh_shape != device.shape:
        raise NotEmulatedError(
            f"ttnn.rand over {mesh_shape!r} of a {device.shape!r} mesh is not emulated",
            expected=f"{device.shape!r}",
            fix="Leave mesh_shape_override out.",
        )
    dims = [1] * mesh_shape.dims()
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            wrong = f"ttnn::rand: MeshMapperConfig shard dim {placement.dim} exceeds tensor rank {len(local)}"
            require(placement.dim < len(local), wrong, "a dim of the shape", "Shard a dim of the tensor.")
            require(
                local[placement.dim] % mesh_shape[axis] == 0,
                f"ttnn::rand: shape[{placement.dim}]={local[placement.dim]} is not divisible by mesh dimension size "
                f"{mesh_shape[axis]}",
                f"a multiple of {mesh_shape[axis]}",
                "Pad the shape.",
            )
            local[placement.dim] //= mesh_shape[axis]
            dims[axis] = mesh_shape[axis]
    coords = compute_distribution_to_mesh_mapping(mesh_shape, device.shape)
    return dims, TensorTopology(mesh_shape, placements, coords)


def _spec(
    shape: Sequence[int], dtype: DataType, layout: Layout | None, memory_config: MemoryConfig | None
) -> TensorSpec:
    result_layout = Layout.TILE if layout is None else layout
    return TensorSpec(tuple(shape), dtype, result_layout, memory_config=memory_config or DRAM_MEMORY_CONFIG)


def _randn_lane(spec: TensorSpec, seed: int, lane_axes: int, torch_device: torch.device) -> torch.Tensor:
    shape = (*[1] * lane_axes, *spec.shape)
    if torch_device.type == "meta":
        return torch.empty(shape, device=torch_device, dtype=torch.float32)
    return torch.randn(
        shape, generator=torch.Generator(torch_device).manual_seed(seed), device=torch_device, dtype=torch.float32
    )


RANDN = device_operation(
    "ttnn.randn",
    stages=_random_stages,
    out=requested_spec,
    runtime=("seed",),
    topology=lambda call: TensorTopology.replicated_along_axes(call.mesh.shape),
)(_randn_lane)


@composite("ttnn.randn")
def randn(
    shape: Sequence[int],
    device: MeshDevice,
    dtype: DataType | None,
    layout: Layout | None,
    memory_config: MemoryConfig | None,
    seed: int | None,
) -> Tensor:
    """Normally distributed numbers, the same on every device."""
    result_dtype = dtype or bfloat16
    if result_dtype not in (bfloat16, float32):
        raise MeshError(
            f"Randn: Output tensor must be Float32 or Bfloat16, not {result_dtype}",
            expected="bfloat16 or float32",
            fix="Convert with ttnn.typecast.",
        )
    spec = _spec(shape, result_dtype, layout, memory_config)
    result: Tensor = RANDN(spec=spec, seed=draw_seed(seed, device), device=device)
    return result


def _uniform_lane(
    input: torch.Tensor, from_: float, to: float, seed: int, lane_axes: int, torch_device: torch.device
) -> torch.Tensor:
    shape = (*[1] * lane_axes, *input.shape[lane_axes:])
    return _uniform(shape, from_, to, seed, torch_device)


def _input_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [call.specs[0]]


UNIFORM = device_operation(
    "ttnn.uniform",
    out=_input_spec,
    runtime=(
        "from_",
        "to",
        "seed",
    ),
    writes="input",
)(_uniform_lane)


@composite("ttnn.uniform")
def uniform(input: Tensor, from_: float, to: float, seed: int, memory_config: MemoryConfig | None) -> Tensor:
    """Fill a tensor with numbers in [from, to), in place."""
    supported = input.dtype in (bfloat16, float32)
    require(
        supported,
        "Uniform: Input tensor must be Float32 or Bfloat16",
        "float32 or bfloat16",
        "Convert with ttnn.typecast.",
    )
    first, last = inclusive_range(from_, to, input.dtype)
    if memory_config is not None and memory_config != input.memory_config():
        raise MeshError(
            f"ttnn.uniform writes in place and cannot move the tensor to {memory_config}",
            expected=f"{input.memory_config()}",
            fix="Use ttnn.to_memory_config afterwards.",
        )
    result: Tensor = UNIFORM(input=input, from_=first, to=last, seed=draw_seed(seed, input.device()))
    return result


def _dropout_lane(
    input_tensor: torch.Tensor,
    probability: float,
    scale: float,
    seed: int,
    use_per_device_seed: bool,
    lane_axes: int,
    torch_device: torch.device,
) -> torch.Tensor:
    """Zeros with this probability, the other values times the scale."""
    shape = input_tensor.shape if use_per_device_seed else (*[1] * lane_axes, *input_tensor.shape[lane_axes:])
    return torch.where(_uniform(shape, 0.0, 1.0, seed, torch_device) < probability, 0.0, input_tensor * scale)


FORMAT_NUMBERS = {float32: 1, DataType.UINT32: 2, DataType.BFLOAT8_B: 3, DataType.BFLOAT4_B: 4}  # in TT-NN's enum


def _check_dropout(call: Call) -> None:
    dtype = call.specs[0].dtype
    wrong = "Dropout operation requires input and output data types to match."
    number = FORMAT_NUMBERS.get(dtype, 0)
    wrong = f"{wrong} Input data type: {number}, Output data type: 0"
    require(dtype is bfloat16, wrong, "bfloat16", "Convert it with ttnn.typecast.")
    first = call.specs[0]
    tiled = first.layout is Layout.TILE or first.memory_config.is_sharded()
    wrong = (
        "Dropout operation requires tensor to be in Tile layout when working with non-sharded input tensor. Input tensor "
        "layout: 0"
    )
    require(tiled, wrong, "TILE layout", "Convert it with ttnn.to_layout.")
    wrong = f"Dropout probability must be between 0 and 1, got {call['probability']}"
    require(0 <= call["probability"] <= 1, wrong, "a number from 0 to 1", "Change the probability.")


dropout = op(
    "ttnn.experimental.dropout", check=_check_dropout, runtime=("probability", "scale", "seed"), recheck=True,
)(_dropout_lane)  # fmt: skip


def _bernoulli_lane(input: torch.Tensor, seed: int, lane_axes: int, torch_device: torch.device) -> torch.Tensor:
    shape = (*[1] * lane_axes, *input.shape[lane_axes:])
    return _uniform(shape, 0.0, 1.0, seed, torch_device) < input


def _bernoulli_spec(call: Call, inferred: Inferred) -> list[TensorSpec]:
    return [make_output_spec(call, shape, dtype=float32) for shape, _ in inferred]


BERNOULLI = device_operation("ttnn.bernoulli", out=_bernoulli_spec, runtime=("seed",), outputs=("output",))(
    _bernoulli_lane
)


@composite("ttnn.bernoulli")
def bernoulli(
    input: Tensor, seed: int, output: Tensor | None, dtype: DataType | None, memory_config: MemoryConfig | None
) -> Tensor:
    """1 with the probability in the input, else 0; float32 unless dtype is given."""
    arguments: dict[str, Any] = {
        "input": input, "seed": draw_seed(seed, input.device()), "output": output, "dtype": dtype,
        "memory_config": memory_config,
    }  # fmt: skip
    result: Tensor = BERNOULLI(**arguments)
    return result
