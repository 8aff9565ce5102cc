"""When two element-wise calls share one device program, as TT-NN's program hashes decide (tt-metal e4f9f0b)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import prod

from ttmesh.base.dtypes import Layout
from ttmesh.ops.configs.activations import as_unary
from ttmesh.tensor.calls.launch_op import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Programs = Callable[[Call], tuple[Hashable, ...]]
CHAINS = ("activations", "input_tensor_a_activations", "input_tensor_b_activations")


def unary_programs(call: Call) -> tuple[Hashable, ...]:
    """Tiled tensors of any volume share a program; ROW_MAJOR tensors share it if their padded shapes are equal."""
    spec = call.specs[0]
    shape = tuple(spec.padded_shape) if spec.layout is Layout.ROW_MAJOR else None
    options = tuple(call[name] for name in ("variant", "rounding_mode"))
    chain = tuple(map(as_unary, call["ops_chain"] or ()))
    return ((
        call.name, options, chain, call["sub_core_grids"], spec.dtype, spec.layout, spec.memory_config, shape,
        output_memory(call), _shard_volume(spec),
    ),)  # fmt: skip


def binary_programs(op_type: str) -> Programs:
    """A rule for the program key: formats, memory, layouts, broadcasting and activations, but not volumes."""

    def programs(call: Call) -> tuple[Hashable, ...]:
        given = call.outputs[0] if call.outputs else None
        if any(not prod(spec.shape) for spec in call.specs):
            return ()  # an empty tensor launches nothing
        operands = tuple((s.dtype, s.memory_config, s.layout, _shard_volume(s)) for s in call.specs)
        chains = tuple(tuple(map(as_unary, call[name] or ())) for name in CHAINS)
        dtype = given.dtype if given is not None else call["dtype"] or call.specs[0].dtype
        options = tuple(call[name] for name in ("rounding_mode", "fast_and_approximate_mode", "equal_nan"))
        return ((
            op_type, operands, chains, dtype, options, output_memory(call), call["sub_core_grids"], _broadcast_key(call),
        ),)  # fmt: skip

    return programs


def output_memory(call: Call) -> MemoryConfig:
    """The memory config of the result."""
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        return given.memory_config()
    return call["memory_config"] or call.specs[0].memory_config


def _broadcast_key(call: Call) -> Hashable:
    return find_broadcast_operands(call) if len(call.specs) > 1 else "number"


def find_broadcast_operands(call: Call) -> tuple[bool, bool, bool, bool]:
    """Whether the first and the second operand are broadcast along rows and along columns within a tile."""
    (a_h, a_w), (b_h, b_w) = (((1, 1, *spec.shape)[-2:]) for spec in call.specs[:2])
    return (a_h == 1 and b_h != 1, a_w == 1 and b_w != 1, b_h == 1 and a_h != 1, b_w == 1 and a_w != 1)


def _shard_volume(spec: TensorSpec) -> int | None:
    shards = spec.memory_config.shard_spec
    return None if shards is None else prod(shards.shape)
