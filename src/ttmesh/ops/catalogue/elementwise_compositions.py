"""Element-wise operations that TT-NN composes of others: their programs, memory and refusals, read from a table.

`elementwise_compositions.txt` has a line per operation and number of tensors, as observed on TT-NN 0.81.1: a program's
name launches it, +n takes memory for the tensor n, -n gives it back, and after = the results. A line that begins with !
is how TT-NN refuses tensors of a format, or rows in interleaved memory (rows).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.launch_op import Call, StageRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

FORMATS = {DataType.BFLOAT16: "bf16", DataType.FLOAT32: "f32", DataType.BFLOAT8_B: "bf8"}
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
            name, count, kind, text = line[1:].split(maxsplit=3)
            refusals[f"ttnn.{name}", int(count), kind] = text
        elif line and not line.startswith("#"):
            name, count, formats, *tokens = line.split()
            for one in formats.split(","):
                steps[f"ttnn.{name}", int(count), one] = tuple(tokens)
    return Tables(steps, refusals, frozenset(name for name, _, _ in refusals))


def composition_stages(name: str) -> StageRule:
    """The stages of an operation of the table on interleaved tiles of one shape and format; None elsewhere."""

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        specs = call.specs
        if not specs or call["memory_config"] is not None or any(call.outputs) or not _are_alike(specs, results):
            return None
        tokens = read_tables().steps.get((name, len(specs), FORMATS.get(specs[0].dtype, "")))
        return None if tokens is None else _follow(name, tokens, results)

    return stages


def _are_alike(specs: Sequence[TensorSpec], results: Sequence[TensorSpec]) -> bool:
    """Whether all are interleaved tiles of one shape, format and memory."""
    first = specs[0]
    return (
        first.layout is Layout.TILE
        and first.memory_config.interleaved
        and first.shape.volume() > 0
        and all(spec == first for spec in (*specs, *results))
    )


def _follow(
    name: str, tokens: Sequence[str], results: Sequence[TensorSpec]
) -> tuple[Composition, Sequence[PlannedTensor]] | None:
    c, spec = Composition(), results[0]
    end = tokens.index("=")
    made: dict[int, PlannedTensor] = {}
    for token in tokens[:end]:
        if token[0] == "+":
            made[int(token[1:])] = c.allocate(spec)
        elif token[0] == "-":
            c.free(made[int(token[1:])])
        else:
            c.launch(_program_key(name, token, spec))
    numbers = [int(token) for token in tokens[end + 1 :]]
    return None if len(numbers) != len(results) else (c, [made[number] for number in numbers])


def _program_key(name: str, token: str, spec: TensorSpec) -> Hashable:
    """Binary programs are those of ttnn.add and its like; others are kept apart by operation."""
    kind = (spec.dtype, spec.memory_config, spec.layout, None)
    if not token.isupper():
        return name, token, kind
    operands, _, number = token.partition(".")
    chains, options = ((), (), ()), (None, None, None)
    places = "number" if number else (False, False, False, False)
    return (
        operands, (kind,) if number else (kind, kind), chains, spec.dtype, options, spec.memory_config, None, places
    )  # fmt: skip


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
        in_rows = first.layout is Layout.ROW_MAJOR and first.memory_config.interleaved
        format_name = "int32" if first.dtype is DataType.INT32 else FORMATS.get(first.dtype, "")
        kind = "rows" if in_rows and format_name in FORMATS.values() else format_name
        text = refusals.get((name, len(specs), kind), "")
        expected = "tiles" if kind == "rows" else "another format"
        require(not text, text, expected, "Convert it with ttnn.to_layout or ttnn.typecast.")

    return check_both
