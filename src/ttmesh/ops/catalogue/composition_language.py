"""The programs of `gradient_compositions.txt`, followed over specs: what is called, and when its memory goes back.

Memory goes back as in the C++ functions that the lines stand for: temporaries at the end of their statement, the last one
first, variables at the end in the reverse order of their first assignment. The values of a `where` are copied for the time
of the statement.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from ttmesh.base.dtypes import BLOCK_FLOATS, INTEGERS, DataType, Layout
from ttmesh.base.errors import require
from ttmesh.ops.catalogue.planned_calls import PlannedCalls
from ttmesh.ops.configs.activations import UnaryOpType, UnaryWithParam
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.operation import Call
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.spec.tensor_spec import TensorSpec

NUMBERS = {"inf": math.inf, "nan": math.nan, "abs": abs}
FULL_NAMES = {"mul": "multiply", "sub": "subtract"}
FILLED_ON_DEVICE = (DataType.BFLOAT16, DataType.FLOAT32, DataType.BFLOAT8_B)  # others are filled on the host
WITH_NUMBER = frozenset({"ADD_UNARY_SFPU", "SUB_UNARY_SFPU", "UNARY_LT", "UNARY_GT"})
TERNARY = frozenset({"ttnn.addcdiv", "ttnn.addcmul", "ttnn.lerp", "ttnn.mac"})


class CompositionLine(NamedTuple):
    """One line of the file."""

    tensors: tuple[str, ...]
    memory_of: str | None
    statements: tuple[ast.stmt, ...]


@cache
def read_lines() -> Mapping[tuple[str, int], CompositionLine]:
    """The lines by name, with the option, and number of tensors."""
    lines = {}
    for text in files(__package__).joinpath("gradient_compositions.txt").read_text().splitlines():
        if text and not text.startswith("#"):
            head, _, code = text.partition(" | ")
            (name, *tensors) = head.split()
            name, _, memory_of = name.partition("@")
            body = ast.parse(f"def f():\n    {code}").body[0]
            assert isinstance(body, ast.FunctionDef), "a line is the body of a function"
            lines[f"ttnn.{name}", len(tensors)] = CompositionLine(tuple(tensors), memory_of or None, tuple(body.body))
    return lines


class Composed(NamedTuple):
    """What a call consists of: programs and memory, and the results."""

    composition: Composition
    results: tuple[PlannedTensor, ...]


def find_line(call: Call) -> CompositionLine | None:
    """The line of a call, if there is one."""
    name = {"ttnn.clip_bw": "ttnn.clamp_bw", "ttnn.clip": "ttnn.clamp"}.get(call.name, call.name)
    options = [value for value in (call["rounding_mode"], call["approximate"]) if value not in (None, "none", "tanh")]
    bounds = [bound for bound in ("min", "max") if call[bound] is not None]
    one_bound = len(bounds) == 1 and name.startswith("ttnn.clamp")
    variant = "".join(f"/{option}" for option in (*options, *(bounds if one_bound else ())))
    if name in TERNARY:
        variant = "/fallback" if _falls_back(name, call.specs) else "/program"
    return read_lines().get((name + variant, len(call.tensors)))


def _falls_back(name: str, specs: Sequence[TensorSpec]) -> bool:
    """Whether an operation of three operands is composed of binary ones: for some formats and broadcasts."""
    blocks = any(spec.dtype in BLOCK_FLOATS for spec in specs)
    broadcasts = len({tuple((1, 1, *spec.shape)[-2:]) for spec in specs}) > 1
    whole = [spec.dtype in INTEGERS for spec in specs]
    if name == "ttnn.addcdiv":
        return blocks
    return (blocks and broadcasts) or (name == "ttnn.mac" and any(whole)) or (name == "ttnn.lerp" and all(whole))


def compose(call: Call, line: CompositionLine) -> Composed:
    """Follow a line with a call's tensors; raises what the calls in it are refused with."""
    return _Follower(call, line).follow()


class _Follower:
    """The variables and temporaries of one line while it is followed."""

    def __init__(self, call: Call, line: CompositionLine) -> None:
        self._call, self._line, self._calls = call, line, PlannedCalls(call)
        self._variables: dict[str, PlannedTensor] = {}
        self._given = {name: PlannedTensor(spec) for name, spec in zip(line.tensors, call.specs, strict=True)}
        self._holders: Counter[int] = Counter()
        self._temporaries: list[PlannedTensor] = []
        self._memory: MemoryConfig | None = call["memory_config"]
        if self._memory is None and line.memory_of is not None:
            self._memory = self._given[line.memory_of].spec.memory_config

    def follow(self) -> Composed:
        results: tuple[PlannedTensor, ...] = ()
        for statement in self._line.statements:
            if isinstance(statement, ast.Return):
                results = self._return(statement)
            elif isinstance(statement, ast.Assign):
                self._assign(statement)
            else:
                assert isinstance(statement, ast.Expr), "a line has assignments, calls and a return"
                self._evaluate(statement.value)
            self._end_statement()
        for tensor in reversed(self._variables.values()):
            self._release(tensor)
        return Composed(self._calls.c, results)

    def _return(self, statement: ast.Return) -> tuple[PlannedTensor, ...]:
        value = statement.value
        nodes = value.elts if isinstance(value, ast.Tuple) else [value]
        results = []
        for node in nodes:
            assert node is not None, "a line returns tensors"
            made = self._tensor(node)
            if made.allocation is not None:
                self._holders[made.allocation] += 1
            results.append(made)
        return tuple(results)

    def _assign(self, statement: ast.Assign) -> None:
        (target,) = statement.targets
        assert isinstance(target, ast.Name), "a line assigns to variables"
        made, old = self._tensor(statement.value), self._variables.get(target.id)
        if made is old:
            return
        if made in self._temporaries:
            self._temporaries.remove(made)
        elif made.allocation is not None:
            self._holders[made.allocation] += 1
        self._variables[target.id] = made
        if old is not None:
            self._release(old)

    def _end_statement(self) -> None:
        for tensor in reversed(self._temporaries):
            self._release(tensor)
        self._temporaries.clear()

    def _release(self, tensor: PlannedTensor) -> None:
        if tensor.allocation is not None:
            self._holders[tensor.allocation] -= 1
            if self._holders[tensor.allocation] == 0:
                self._calls.c.free(tensor)

    def _keep(self, tensor: PlannedTensor) -> PlannedTensor:
        """A tensor that was made: a temporary until it is assigned."""
        if tensor.allocation is not None:
            self._holders[tensor.allocation] += 1
            self._temporaries.append(tensor)
        return tensor

    def _tensor(self, node: ast.expr) -> PlannedTensor:
        value = self._evaluate(node)
        assert isinstance(value, PlannedTensor), "a line makes tensors"
        return value

    def _evaluate(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and (node.id in self._variables or node.id in self._given):
            return self._variables.get(node.id) or self._given[node.id]
        if isinstance(node, ast.IfExp):
            return self._evaluate(node.body if self._number(node.test) else node.orelse)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != "abs":
            return self._call_operation(node.func.id, node)
        if isinstance(node, ast.Call) and any(isinstance(n, ast.Name) and n.id in self._given for n in node.args):
            return self._call_operation("abs", node)
        return self._number(node)

    def _number(self, node: ast.expr) -> Any:
        """A number or a text; names are options of the call."""
        names = {n.id: self._call[n.id] for n in ast.walk(node) if isinstance(n, ast.Name) and n.id not in NUMBERS}
        return eval(compile(ast.Expression(node), "composition", "eval"), {**NUMBERS, **names})

    def _call_operation(self, name: str, node: ast.Call) -> PlannedTensor:
        plain = name.removesuffix("_")
        arguments = []
        for i, argument in enumerate(node.args):
            value = self._evaluate(argument)
            copied = plain == "where" and i > 0 and isinstance(value, PlannedTensor) and value.allocation is not None
            if copied and value not in self._temporaries:
                self._keep(value)
            arguments.append(value)
        options = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg is not None}
        into = options.pop("to", None)
        target = None if into is None else self._tensor(into)
        memory = None if name.endswith("_") else self._memory
        if plain == "free":
            self._calls.c.free(arguments[0])
            self._holders[arguments[0].allocation] = -1
            return PlannedTensor(arguments[0].spec)
        made = self._launch(plain, arguments, options, memory, target)
        return made if target is not None else self._keep(made)

    def _launch(
        self,
        name: str,
        arguments: Sequence[Any],
        options: Mapping[str, ast.expr],
        memory: MemoryConfig | None,
        target: PlannedTensor | None,
    ) -> PlannedTensor:
        calls = self._calls
        if name == "empty":
            return calls.c.allocate(_like(arguments[0].spec, memory))
        if name == "assign":
            return self._copy(arguments[0], memory, target)
        spec = arguments[0].spec
        if name == "fill" and (spec.layout is not Layout.TILE or spec.dtype not in FILLED_ON_DEVICE):
            return target or calls.c.allocate(_like(spec, memory))
        if name == "chain":
            arguments = [arguments[0], [_activation(text) for text in arguments[1:]]]
        values = {key: self._number(node) for key, node in options.items()}
        for short, key in (("a", "input_tensor_a_activations"), ("b", "input_tensor_b_activations")):
            if short in values:
                values[key] = [_activation(text) for text in values.pop(short)]
        full = {"chain": "unary_chain"}.get(name, FULL_NAMES.get(name, name))
        return calls.run(f"ttnn.{full}", arguments, {**values, "memory_config": memory}, target)

    def _copy(self, x: PlannedTensor, memory: MemoryConfig | None, target: PlannedTensor | None) -> PlannedTensor:
        """The copy program; into a tensor of the same shape and layout."""
        made = _like(x.spec, memory) if target is None else target.spec
        if target is not None:
            wrong = f"Input tensor shape {x.spec.shape!r} does not match output tensor shape {made.shape!r}"
            require(tuple(x.spec.shape) == tuple(made.shape), wrong, "equal shapes", "Reshape one of the tensors.")
            wrong = f"Input tensor layout ({x.spec.layout}) must equal output tensor layout ({made.layout})"
            require(x.spec.layout is made.layout, wrong, "equal layouts", "Convert one with ttnn.to_layout.")
        self._calls.c.launch(("copy", x.spec, made))
        return target or self._calls.c.allocate(made)


def _like(spec: TensorSpec, memory: MemoryConfig | None) -> TensorSpec:
    config = spec.memory_config if memory is None else memory
    return TensorSpec(tuple(spec.shape), spec.dtype, spec.layout, memory_config=config)


def _activation(text: str) -> UnaryWithParam:
    """A function of a chain; those with a number get 1."""
    kind = UnaryOpType[text]
    return UnaryWithParam(kind, 1.0) if text in WITH_NUMBER else UnaryWithParam(kind)


def can_compose(call: Call) -> bool:
    """Whether a call can be composed: everything is computed, into newly allocated memory."""
    required = call["are_required_outputs"]
    sizes = [spec.shape.volume() for spec in call.specs]
    return not any(call.outputs) and all(sizes) and (required is None or all(required))
