"""When two element-wise calls share one device program, as TT-NN's program hashes decide (tt-metal e4f9f0b)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import prod

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.ops.configs.activations import as_unary
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

Programs = Callable[[Call], tuple[Hashable, ...]]
CHAINS = ("activations", "input_tensor_a_activations", "input_tensor_b_activations")
NO_CHAINS: tuple[tuple[Hashable, ...], ...] = ((), (), ())
# unary operations whose program another one shares
SAME_PROGRAM = {
    "ttnn.sigmoid_accurate": "ttnn.sigmoid",
    "ttnn.swish": "ttnn.silu",
    "ttnn.logical_not_": "ttnn.logical_not",
}
NOT_PARAMETERS = frozenset({"memory_config", "output_tensor", "sub_core_grids", "ops_chain", "vector_mode"})
# binary operations that TT-NN runs as unary ones where the second operand is a number, each number a program of its own
WITH_NUMBER = frozenset(
    {
        "POWER",
        "MAXIMUM",
        "MINIMUM",
        "REMAINDER",
        "FMOD",
        "BIAS_GELU",
        "BITWISE_AND",
        "BITWISE_OR",
        "BITWISE_XOR",
        "LEFT_SHIFT",
        "RIGHT_SHIFT",
    }
)
BY_VALUE = WITH_NUMBER - {"BIAS_GELU"}


def unary_programs(call: Call) -> tuple[Hashable, ...]:
    """One program per function, parameters, format and memory."""
    _, *others = call.arguments.items()
    parameters = tuple(value or None for name, value in others if name not in NOT_PARAMETERS)
    chain = tuple(map(as_unary, call["ops_chain"] or ()))
    return (unary_key(call.name, call.specs[0], output_memory(call), parameters, chain, call["sub_core_grids"]),)


def unary_key(
    name: str,
    spec: TensorSpec,
    output: MemoryConfig,
    parameters: tuple[Hashable, ...] = (),
    chain: tuple[Hashable, ...] = (),
    cores: Hashable = None,
) -> Hashable:
    """Tiled tensors of any volume share a program; ROW_MAJOR tensors share it if their padded shapes are equal."""
    shape = tuple(spec.padded_shape) if spec.layout is Layout.ROW_MAJOR else None
    given = tuple(value for value in parameters if value is not None)
    return (
        SAME_PROGRAM.get(name, name), given, chain, cores, spec.dtype, spec.layout, spec.memory_config, shape, output,
        _shard_volume(spec),
    )  # fmt: skip


def binary_programs(op_type: str) -> Programs:
    """A rule for the program key: formats, memory, layouts, broadcasting and activations, but not volumes."""

    def programs(call: Call) -> tuple[Hashable, ...]:
        if any(not prod(spec.shape) for spec in call.specs):
            return ()  # an empty tensor launches nothing
        return (binary_call_key(op_type, call, call.specs),)

    return programs


FAST_BY_DEFAULT = ("ADD", "SUB", "RSUB")


def binary_call_key(
    op_type: str, call: Call, specs: Sequence[TensorSpec], output: MemoryConfig | None = None, *, rounds: bool = True
) -> Hashable:
    """The program of a call whose operands were converted to these specs."""
    given = call.outputs[0] if call.outputs else None
    chains = tuple(tuple(map(as_unary, call[name] or ())) for name in CHAINS)
    dtype = given.dtype if given is not None else call["dtype"] or specs[0].dtype
    mode = call["rounding_mode"] or None if rounds else None
    fast = call["fast_and_approximate_mode"]
    if op_type in FAST_BY_DEFAULT:  # what a call leaves out is no part of the key, as where a composite adds
        fast = fast is False
    options = (mode, fast or None, call["equal_nan"] or None)
    number = call["input_tensor_b"] if op_type in BY_VALUE and len(specs) == 1 else None
    places = find_broadcast_operands(specs) if len(specs) > 1 else ("number", number)
    follows = len(specs) > 1 and given is None and call["memory_config"] is None
    return binary_key(
        op_type, specs, dtype, output or output_memory(call), places, chains, options, call["sub_core_grids"],
        follows=follows,
    )  # fmt: skip


def binary_key(
    op_type: str,
    specs: Sequence[TensorSpec],
    dtype: DataType,
    output: MemoryConfig,
    places: Hashable = (False, False, False, False),
    chains: Hashable = NO_CHAINS,
    options: Hashable = (None, None, None),
    cores: Hashable = None,
    *,
    follows: bool = False,
) -> Hashable:
    """Two tensors, or a tensor and a number (`places` is then "number" and, where each is a program, its value).

    `follows`: no memory was asked for. Shards that follow the operands' are a program of their own.
    """
    operands = tuple((s.dtype, s.memory_config, s.layout, _shard_volume(s)) for s in specs)
    own = follows and output.is_sharded()
    return op_type, operands, chains, dtype, options, output, cores, places, own


def ternary_programs(op_type: str, *operands: str) -> Programs:
    """A rule for the program key of an operation on three tensors, or on tensors and numbers."""

    def programs(call: Call) -> tuple[Hashable, ...]:
        if all(isinstance(call[name], int | float) for name in operands[1:]):
            numbers = tuple(call[name] for name in operands[1:])
            return ((op_type, "numbers", unary_key(op_type, call.specs[0], output_memory(call), numbers)),)
        return (ternary_call_key(op_type, operands, call, call.specs),)

    return programs


def ternary_call_key(op_type: str, operands: Sequence[str], call: Call, specs: Sequence[TensorSpec]) -> Hashable:
    """The program of a call whose tensors were converted to these specs."""
    kinds = "".join("S" if isinstance(call[name], int | float) else "T" for name in operands)
    if op_type == "WHERE" and len(specs) == 2:  # a binary program, in the memory of the value
        given = call.outputs[0] if call.outputs else None
        output = given.memory_config() if given is not None else call["memory_config"] or specs[1].memory_config
        places = find_broadcast_operands(specs)
        return binary_key(f"WHERE_{kinds}", specs, specs[1].dtype, output, places)
    shapes = tuple(tuple((1, 1, *spec.shape)[-2:]) for spec in specs)
    broadcast = shapes if len(set(shapes)) > 1 else ()
    return ternary_key(op_type, kinds, specs, output_memory(call), broadcast)


def ternary_key(
    op_type: str, kinds: str, specs: Sequence[TensorSpec], output: MemoryConfig, broadcast: tuple[Hashable, ...]
) -> Hashable:
    """The volumes of the operands count."""
    operands = tuple((s.dtype, s.memory_config, s.layout, _shard_volume(s), prod(s.padded_shape)) for s in specs)
    return op_type, kinds, operands, output, broadcast


def output_memory(call: Call) -> MemoryConfig:
    """The memory config of the result."""
    given = call.outputs[0] if call.outputs else None
    if given is not None:
        return given.memory_config()
    return call["memory_config"] or call.specs[0].memory_config


def find_broadcast_operands(specs: Sequence[TensorSpec]) -> tuple[bool, bool, bool, bool]:
    """Whether the first and the second operand are broadcast along rows and along columns within a tile."""
    (a_h, a_w), (b_h, b_w) = (((1, 1, *spec.shape)[-2:]) for spec in specs[:2])
    return (a_h == 1 and b_h != 1, a_w == 1 and b_w != 1, b_h == 1 and a_h != 1, b_w == 1 and a_w != 1)


def _shard_volume(spec: TensorSpec) -> int | None:
    shards = spec.memory_config.shard_spec
    return None if shards is None else prod(shards.shape)
