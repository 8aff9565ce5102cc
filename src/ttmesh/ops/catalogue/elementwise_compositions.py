"""Element-wise operations that TT-NN composes of others: their programs, memory, results and refusals.

`gradient_compositions.txt` has what they are composed of (`composition_language.py` follows it). For operations that are not
there, `elementwise_compositions.txt` has how TT-NN 0.81.1 refuses tensors of some formats ({} stands for the format), rows
of floats in interleaved memory (rows) or in shards (sharded_rows), or rows of integers (int32_rows).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from weakref import ref

from ttmesh.base.dtypes import DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.composition_language import Composed, can_compose, compose, find_line, read_lines
from ttmesh.ops.catalogue.spec_rules import Inferred
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call, SpecRule, StageRule
from ttmesh.tensor.spec.tensor_spec import TensorSpec

FORMATS = {DataType.BFLOAT16: "bf16", DataType.FLOAT32: "f32", DataType.BFLOAT8_B: "bf8"}
OTHER_FORMATS = {
    DataType.BFLOAT4_B: "bf4", DataType.INT32: "int32", DataType.UINT32: "uint32", DataType.UINT16: "uint16",
    DataType.UINT8: "uint8",
}  # fmt: skip


@cache
def read_refusals() -> Mapping[str, Mapping[tuple[int, str], str]]:
    """The refusals of the file: of each operation, by number of tensors and kind of the first."""
    refusals: dict[str, dict[tuple[int, str], str]] = {}
    for line in files(__package__).joinpath("elementwise_compositions.txt").read_text().splitlines():
        if line.startswith("!"):
            name, count, kinds, text = line[1:].split(maxsplit=3)
            for kind in kinds.split(","):
                refusals.setdefault(f"ttnn.{name}", {})[int(count), kind] = text
    return refusals


@cache
def list_composed() -> frozenset[str]:
    """The operations that have a line."""
    names = {name.partition("/")[0] for name, _ in read_lines()}
    return frozenset(names | {"ttnn.clip", "ttnn.clip_bw"})


class _Last:
    """The composition of the call that is planned: checks, specs and stages ask for it one after the other."""

    call: ref[Call] | None = None  # weak: a refused call must not keep its tensors
    composed: Composed | None = None


def _compose_once(call: Call) -> Composed | None:
    if _Last.call is None or _Last.call() is not call:
        line = find_line(call) if can_compose(call) else None
        _Last.composed = None
        composed = None if line is None else compose(call, line)
        _Last.call, _Last.composed = ref(call), composed
    return _Last.composed


def composition_specs(name: str, out: SpecRule) -> SpecRule:
    """The rule of results, which follows the composition where shapes are as computed here."""
    if name not in list_composed():
        return out

    def rule(call: Call, inferred: Inferred) -> Sequence[TensorSpec]:
        composed = _compose_once(call)
        shapes = [tuple(shape) for shape, _ in inferred]
        if composed is None or [tuple(result.spec.shape) for result in composed.results] != shapes:
            return out(call, inferred)
        return [result.spec for result in composed.results]

    return rule


def composition_stages(name: str) -> StageRule | None:
    """The stages of an operation that has a line."""
    if name not in list_composed():
        return None

    def stages(call: Call, results: Sequence[TensorSpec]) -> tuple[Composition, Sequence[PlannedTensor]] | None:
        composed = _compose_once(call)
        _Last.call = _Last.composed = None
        if composed is None or [result.spec for result in composed.results] != list(results):
            return None
        c, made = composed.composition, []
        for (
            result
        ) in composed.results:  # a given tensor, or one that is two results, gets memory that goes back at once
            again = result.allocation is None or result in made
            made.append(c.allocate(result.spec) if again else result)
        return c, made

    return stages


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
    refusals, composes = read_refusals().get(name, {}), name in list_composed()
    if not composes and not refusals:
        return check

    def check_both(call: Call) -> None:
        if check is not None:
            check(call)
        if composes and _compose_once(call) is not None:
            return
        specs = call.specs
        first = specs[0]
        if name.endswith("_bw"):  # of a gradient, integers on either side
            first = next((spec for spec in specs if spec.dtype not in FORMATS), first)
        for kind in _list_kinds(first):
            text = refusals.get((len(specs), kind))
            if text is not None:
                expected = "tiles" if kind.endswith("rows") else "another format"
                wrong = text.replace("{}", first.dtype.name)
                require(False, wrong, expected, "Convert it with ttnn.to_layout or ttnn.typecast.")

    return check_both
