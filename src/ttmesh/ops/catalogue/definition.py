"""How operations are defined in the catalogue: a name, a lane function, a spec rule, checks and a golden function.

    @op("ttnn.softmax", golden=lambda input_tensor, dim=-1: torch.softmax(input_tensor, dim))
    def softmax(input_tensor, dim):
        return torch.softmax(input_tensor.float(), dim)

The signature comes from signatures.txt. A lane function names the parameters it uses; parameters that it does not name
must be in `parameter_tags.COMMON` (used elsewhere, or without effect for a stated reason).
"""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ttmesh.base.errors import MeshError, NotEmulatedError
from ttmesh.base.signals import signals
from ttmesh.ops.catalogue.elementwise_compositions import (
    check_composition,
    composition_specs,
    composition_stages,
)
from ttmesh.ops.catalogue.fpu_defaults import FpuRule, fpu_rules
from ttmesh.ops.catalogue.input_rules import check_inputs
from ttmesh.ops.catalogue.op_function import NO_NAMES, select_arguments
from ttmesh.ops.catalogue.op_function import Golden as Golden
from ttmesh.ops.catalogue.op_function import OpFunction as OpFunction
from ttmesh.ops.catalogue.planned_calls import PlannedFunction, functions
from ttmesh.ops.catalogue.signatures import list_parameters
from ttmesh.ops.catalogue.spec_rules import like_first
from ttmesh.ops.configs.shard_requirements import require_shards
from ttmesh.tensor.calls.call_records import report_calls
from ttmesh.tensor.calls.gate import DeviceOperation
from ttmesh.tensor.calls.lane_calls import Arguments
from ttmesh.tensor.calls.launch_op import launch, separate
from ttmesh.tensor.calls.operation import Call, Operation, Specialise, SpecRule, StageRule
from ttmesh.tensor.calls.plan import OUTPUTS
from ttmesh.tensor.spec.tensor_topology import TensorTopology


@dataclass(frozen=True)
class Entry:
    """The catalogue's entry of an operation: its name, function and golden."""

    name: str
    function: OpFunction
    operation: Operation | None  # None for composites, which call other operations
    golden: Golden | None
    same_as: str | None = None


catalogue: dict[str, Entry] = {}
signals.provide("report calls", report_calls)


def device_operation(
    name: str,
    *,
    out: SpecRule = like_first,
    check: Callable[[Call], None] | None = None,
    topology: Callable[[Call], TensorTopology] | None = None,
    runtime: Sequence[str] = (),
    programs: Callable[[Call], tuple[Hashable, ...]] | None = None,
    scratch: Callable[[Call], int] | None = None,
    stages: StageRule | None = None,
    writes: str | None = None,
    writes_if: Callable[[Arguments], bool] | None = None,
    outputs: Sequence[str] | None = None,
    host: bool = False,
    in_place: bool = False,
    specialise: Specialise | None = None,
    takes: Iterable[str] | None = None,
    recheck: bool | Callable[[Arguments], bool] = False,
    alias: Callable[[Call], Sequence[int] | None] | None = None,
    min_rank: int = 0,
    fpu: FpuRule | None = None,
) -> Callable[[Callable[..., Any]], DeviceOperation]:
    """Make a lane function callable on tensors, by keywords, without entering it into the catalogue.

    Args:
        name: its name in records and errors; the other arguments are those of `Operation`.
        takes: the parameters of the lane function, if its signature does not name them.
    """

    def decorate(lane: Callable[..., Any]) -> DeviceOperation:
        operation = Operation(
            name,
            lane,
            require_shards(name, composition_specs(name, out)),
            check=check_composition(name, check_inputs(name, check)),
            topology=topology,
            runtime=frozenset(runtime),
            programs=programs,
            scratch=scratch,
            stages=stages or composition_stages(name),
            writes=writes,
            writes_if=writes_if,
            outputs=None if outputs is None else tuple(outputs),
            host=host,
            in_place=in_place,
            specialise=specialise,
            recheck=recheck,
            alias=alias,
            min_rank=min_rank,
            fpu=fpu or fpu_rules.get(name),
            lane_arguments=frozenset(list_parameters(lane) if takes is None else takes),
        )
        return DeviceOperation(operation)

    return decorate


def op(
    name: str,
    *,
    golden: Golden | None = None,
    out: SpecRule = like_first,
    check: Callable[[Call], None] | None = None,
    topology: Callable[[Call], TensorTopology] | None = None,
    runtime: Sequence[str] = (),
    programs: Callable[[Call], tuple[Hashable, ...]] | None = None,
    scratch: Callable[[Call], int] | None = None,
    stages: StageRule | None = None,
    writes: str | None = None,
    writes_if: Callable[[Arguments], bool] | None = None,
    outputs: Sequence[str] | None = None,
    host: bool = False,
    names: Mapping[str, str] = NO_NAMES,
    in_place: bool = False,
    specialise: Specialise | None = None,
    takes: Iterable[str] | None = None,
    recheck: bool | Callable[[Arguments], bool] = False,
    alias: Callable[[Call], Sequence[int] | None] | None = None,
    min_rank: int = 0,
    fpu: FpuRule | None = None,
    hands_back: str | Callable[[Arguments], Any] | None = None,
    shares_result: bool = False,
) -> Callable[[Callable[..., Any]], OpFunction]:
    """Define a lane function as the operation of this name.

    Args:
        hands_back: the argument that TT-NN returns as the first of the results, on the memory where it is, or a function
          that finds it.
        shares_result: TT-NN returns one tensor as both of two results.
        names: a parameter's name in overloads -> its name in the lane function; the other arguments are those of
          `device_operation`.
    """
    make = device_operation(
        name, out=out, check=check, topology=topology, runtime=runtime, programs=programs, scratch=scratch,
        writes=writes, outputs=outputs, host=host, in_place=in_place, specialise=specialise, takes=takes, recheck=recheck,
        stages=stages, alias=alias, min_rank=min_rank, fpu=fpu, writes_if=writes_if,
    )  # fmt: skip

    def decorate(lane: Callable[..., Any]) -> OpFunction:
        operation = make(lane).operation
        run = functools.partial(launch, operation)
        if hands_back is not None:
            find = operator.itemgetter(hands_back) if isinstance(hands_back, str) else hands_back
            run = functools.partial(_launch_and_hand_back, operation, find)
        if shares_result:
            run = functools.partial(_launch_and_share, operation)
        taken = operation.lane_arguments.union(OUTPUTS if operation.outputs is None else operation.outputs)
        if hands_back is not None or shares_result:
            return define(name, run, golden, lane.__doc__, None, names, taken | {"memory_config"})
        defined = define(name, run, golden, lane.__doc__, operation, names, taken)
        defined.returns_tensor = lane.__annotations__.get("return") == "torch.Tensor"
        return defined

    return decorate


def _launch_and_hand_back(operation: Operation, find: Callable[[Arguments], Any], arguments: Arguments) -> Any:
    """Run an operation whose first result is one of its arguments."""
    results, handed = launch(operation, arguments), find(arguments)
    given = any(arguments.get(target) is not None for target in operation.outputs or ())
    if given or handed is None or results[0] is None or tuple(results[0].shape) != tuple(handed.shape):
        return results
    results[0].deallocate(force=True)
    return [separate(handed), *results[1:]]


def _launch_and_share(operation: Operation, arguments: Arguments) -> Any:
    """Run an operation whose two results are one tensor."""
    results = launch(operation, arguments)
    if len(results) < 2 or any(one is None for one in results) or tuple(results[0].shape) != tuple(results[1].shape):
        return results
    results[1].deallocate(force=True)
    return [results[0], separate(results[0])]


def composite(
    name: str,
    *,
    golden: Golden | None = None,
    names: Mapping[str, str] = NO_NAMES,
    direct: bool = False,
    own_options: Iterable[str] = (),
) -> Callable[[Callable[..., Any]], OpFunction]:
    """Define a function that calls other operations; it gets the arguments it names.

    `direct`: its behaviour on device tensors depends on kinds and options only, so that a call that runs one program or
    makes one view gets a fast path. `own_options`: those of its parameters that ttmesh adds to TT-NN's.
    """

    def decorate(function: Callable[..., Any]) -> OpFunction:
        taken = frozenset(list_parameters(function))
        own = taken.intersection(own_options)
        run = select_arguments(function)
        defined = define(name, run, golden, function.__doc__, None, names, taken, direct=direct, own_options=own)
        defined.returns_tensor = function.__annotations__.get("return") == "Tensor"
        return defined

    return decorate


def alias(name: str, of: OpFunction) -> OpFunction:
    """Add a second name of an operation."""
    catalogue[name] = Entry(
        name, of, catalogue[of.python_fully_qualified_name].operation, of.golden_function, of.__name__
    )
    return of


def get_golden_function(operation: Any) -> Golden:
    """The torch function an operation, or anything with a `golden_function`, is compared with."""
    if not hasattr(operation, "golden_function"):
        raise MeshError(
            f"{operation!r} is not an operation",
            expected="an operation of ttnn",
            fix="Pass an operation such as ttnn.add.",
        )
    golden: Golden | None = operation.golden_function
    if golden is None:
        raise NotEmulatedError(
            f"{getattr(operation, 'python_fully_qualified_name', operation)} has no golden function",
            expected="an operation with a torch equivalent",
            fix="Compare with your own torch code.",
        )
    return _ignore_device_options(golden)


# Options of memory and computation, which torch does not have but tests pass to goldens.
WITHOUT_MEANING_IN_TORCH = frozenset({
    "memory_config", "device", "queue_id", "cq_id", "output_tensor", "optional_output_tensor", "compute_kernel_config",
    "program_config", "core_grid", "sub_core_grids", "fast_and_approximate_mode", "layout",
})  # fmt: skip


def _ignore_device_options(golden: Golden) -> Golden:
    """Wrap a golden function so that it ignores options that have no meaning in torch, unless it names them."""
    try:
        parameters = inspect.signature(golden).parameters
    except ValueError:  # torch's builtin functions have no signature
        return golden
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return golden
    ignored = WITHOUT_MEANING_IN_TORCH.difference(parameters)

    @functools.wraps(golden)
    def call_golden(*args: Any, **options: Any) -> Any:
        return golden(*args, **{name: value for name, value in options.items() if name not in ignored})

    return call_golden


def define(
    name: str,
    call: Callable[[Arguments], Any],
    golden: Golden | None,
    doc: str | None,
    operation: Operation | None,
    names: Mapping[str, str],
    takes: frozenset[str],
    *,
    direct: bool = False,
    own_options: frozenset[str] = frozenset(),
) -> OpFunction:
    """Add an operation to the catalogue."""
    assert name not in catalogue, f"{name} is defined twice"
    function = OpFunction(name, call, golden, doc, operation, names, takes, direct, own_options)
    if operation is not None:
        functions[name] = PlannedFunction(function, operation)
    catalogue[name] = Entry(name, function, operation, golden)
    return function
