"""Element-wise operations that TT-NN composes of others: their programs, memory and refusals, read from a table.

`elementwise_compositions.txt` has a line per operation and number of tensors, as observed on TT-NN 0.81.1. `name:ab>c`
launches a program: a and b say where its operands are and c where its result goes (i: with the tensors given, o: in the
results' memory). +n takes memory for the tensor n, -n gives it back, and after = the results. A name in lower case is the
program of the unary operation of this name. A line that begins with ! is how TT-NN refuses tensors of some formats ({}
stands for the format), rows of floats in interleaved memory (rows) or in shards (sharded_rows), or rows of integers
(int32_rows).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.program_keys import binary_key, ternary_key, unary_key
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, StageRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

FORMATS = {DataType.BFLOAT16: "bf16", DataType.FLOAT32: "f32", DataType.BFLOAT8_B: "bf8"}
OTHER_FORMATS = {
    DataType.BFLOAT4_B: "bf4", DataType.INT32: "int32", DataType.UINT32: "uint32", DataType.UINT16: "uint16",
    DataType.UINT8: "uint8",
}  # fmt: skip
BY_SHAPE = frozenset({"Copy", "UnaryBackward", "BinaryBackward"})  # programs of one shape each
Identity = tuple[str, int, str]  # the operation, how many tensors it gets, their format


class Tables(NamedTuple):
    """What the file says."""

    steps: Mapping[Identity, tuple[str, ...]]
    refusals: Mapping[Identity, str]
    refused_names: frozenset[str]


@cache
def read_tables() -> Tables:
    """The file, once."""
    steps: dict[Identity, tuple[str, ...]] = {}
    refusals: dict[Identity, str] = {}
    for line in files(__package__).joinpath("elementwise_compositions.txt").read_text().splitlines():
        if line.startswith("!"):
            name, count, kinds, text = line[1:].split(maxsplit=3)
            for kind in kinds.split(","):
                refusals[f"ttnn.{name}", int(count), kind] = text
        elif line and not line.startswith("#"):
            name, count, formats, *tokens = line.split()
            for one in formats.split(","):
                steps[f"ttnn.{name}", int(count), one] = tuple(tokens)
    return Tables(steps, refusals, frozenset(name for name, _, _ in refusals))


def composition_stages(name: str) -> StageRule:
    """The stages of an operation of the table on tensors of one shape, format and memory; None elsewhere."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        specs = call.specs
        if (
            not specs
            or any(call.outputs)
            or not _are_alike(specs, results)
            or not all(call["are_required_outputs"] or (1,))
        ):
            return None
        format_name = FORMATS.get(specs[0].dtype, "bf16")
        tokens = read_tables().steps.get((name + _find_variant(call), len(specs), format_name))
        return None if tokens is None else _follow(call, name, tokens, specs[0], results)

    return stages


def _find_variant(call: Call) -> str:
    """Options that lead to another composition: /floor, /tanh, or the one bound of two that is given."""
    options = [value for value in (call["rounding_mode"], call["approximate"]) if value not in (None, "none")]
    bounds = [bound for bound in ("min", "max") if isinstance(call[bound], int | float)]
    one_bound = len(bounds) == 1 and len(call.specs) == 2
    return "".join(f"/{option}" for option in (*options, *(bounds if one_bound else ())))


def _are_alike(specs: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> bool:
    """Whether all tensors given are alike, and the results too but for where they are."""
    first = specs[0]
    kind = (tuple(first.shape), first.dtype, first.layout)
    return (
        first.shape.volume() > 0
        and all(spec == first for spec in specs)
        and all((tuple(spec.shape), spec.dtype, spec.layout) == kind for spec in results)
        and len({spec.memory_config for spec in results}) == 1
    )


def _follow(
    call: Call, name: str, tokens: Sequence[str], given: TensorSpec, results: Sequence[TensorSpec]
) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    c, places = Composition(), {"i": given, "o": results[0]}
    end = tokens.index("=")
    made: dict[str, PlannedTensor] = {}
    for token in tokens[:end]:
        if token[0] == "+":
            made[token[1:-1]] = c.allocate(places[token[-1]])
        elif token[0] == "-":
            c.free(made[token[1:]])
        elif not token.startswith("fill") or (given.layout is Layout.TILE and given.dtype in FORMATS):
            c.launch(_program_key(name, token, places, call))  # rows and integers are filled on the host
    numbers = tokens[end + 1 :]
    if len(numbers) != len(results):
        return None
    stages = []
    for i, number in enumerate(numbers):  # a tensor that is two results gets memory twice, and the operation frees one
        stages.append(made[number] if number in made and number not in numbers[:i] else c.allocate(results[0]))
    return c, stages


def _program_key(name: str, token: str, places: Mapping[str, TensorSpec], call: Call) -> Hashable:
    """Programs of unary, binary and ternary operations are those of ttnn.exp, add and where; others are kept apart."""
    program, _, memory = token.partition(":")
    function, _, parameter = program.partition("=")
    operands = [places[letter] for letter in memory.partition(">")[0]]
    result = places[memory[-1]]
    if function.startswith("WHERE"):
        kinds = function.removeprefix("WHERE_").removesuffix(".N") if "_" in function else "TTT"
        shapes = (tuple((1, 1, *result.shape)[-2:]),) * len(operands)
        return ternary_key("WHERE", kinds, operands, result.memory_config, shapes)
    if function.isupper() and not function.endswith(".act"):
        number = function.endswith(".N")
        operator, counted = function.removesuffix(".N"), ("number", None) if number else (False, False, False, False)
        return binary_key(operator, operands, result.dtype, result.memory_config, counted)
    values = (_read_parameter(parameter, call),) if parameter else ()
    if function.islower() and not function.startswith("own"):
        return unary_key(f"ttnn.{function}", operands[0], result.memory_config, values)
    shape = tuple(result.shape) if function in BY_SHAPE else None
    kinds_of_all = tuple((spec.dtype, spec.layout, spec.memory_config) for spec in (*operands, result))
    return "" if function == "Copy" else name, program, values, kinds_of_all, shape


def _read_parameter(text: str, call: Call) -> Hashable:
    """A number of the table, or the value of an argument."""
    try:
        return float(text) or None
    except ValueError:
        value: Hashable = call[text]
        return value


def _list_kinds(spec: TensorSpec) -> Sequence[str]:
    """The kinds of the table that a tensor is of, the narrowest first."""
    name = FORMATS.get(spec.dtype, OTHER_FORMATS.get(spec.dtype, ""))
    if spec.layout is not Layout.ROW_MAJOR:
        return (name,)
    if spec.dtype in FORMATS:
        return ("rows",) if spec.memory_config.interleaved else ("sharded_rows", name)
    return (f"{name}_rows", name) if spec.memory_config.interleaved else (name,)


def check_composition(name: str, check: Callable[[Call], None] | None) -> Callable[[Call], None] | None:
    """Combine an operation's check with the refusals of the programs that it is composed of."""
    tables = read_tables()
    refusals = tables.refusals
    if name not in tables.refused_names:
        return check

    def check_both(call: Call) -> None:
        if check is not None:
            check(call)
        specs = call.specs
        first = specs[0]
        if name.endswith("_bw"):  # of a gradient, integers on either side
            first = next((spec for spec in specs if spec.dtype not in FORMATS), first)
        for kind in _list_kinds(first):
            text = refusals.get((name, len(specs), kind))
            if text is not None:
                expected = "tiles" if kind.endswith("rows") else "another format"
                wrong = text.replace("{}", first.dtype.name)
                require(False, wrong, expected, "Convert it with ttnn.to_layout or ttnn.typecast.")

    return check_both
