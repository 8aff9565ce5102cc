"""How an operation enters the catalogue: a name, a lane function, a spec rule, checks and a golden function.

    @op("ttnn.softmax", golden=lambda input_tensor, dim=-1: torch.softmax(input_tensor, dim))
    def softmax(input_tensor, dim):
        return torch.softmax(input_tensor.float(), dim)

The signature comes from signatures.txt. A lane function names the parameters it uses; parameters that it does not name
must be in `parameters.COMMON` (used by the machinery, or without effect here for a stated reason).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ttmesh.base.errors import MeshError, NotEmulatedError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import command_queue
from ttmesh.ops.catalogue.hooks import after, before
from ttmesh.ops.catalogue.signatures import REQUIRED, overloads
from ttmesh.ops.catalogue.spec_rules import like_first
from ttmesh.tensor.calls.argument_errors import check_types, types_misfit
from ttmesh.tensor.calls.argument_snapshots import snapshot_all
from ttmesh.tensor.calls.call_keys import add_named, add_to_key
from ttmesh.tensor.calls.call_routes import Route, View, remember, route_of, traced, view_route
from ttmesh.tensor.calls.launch_op import (
    OUTPUTS,
    Arguments,
    Call,
    Operation,
    Specialise,
    SpecRule,
    alias_of,
    launch,
    prepare,
    tensors_in,
    watchers,
)
from ttmesh.tensor.calls.plan import execute
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor

Golden = Callable[..., Any]
NO_NAMES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Entry:
    """What the catalogue keeps of an operation besides how to run it."""

    name: str
    function: OpFunction
    operation: Operation | None  # None for composites, which call other operations
    golden: Golden | None
    same_as: str | None = None


class OpFunction:
    """A TT-NN operation as Python sees it: callable, with its qualified name and golden function."""

    def __init__(
        self,
        name: str,
        run: Callable[[Arguments], Any],
        golden: Golden | None,
        doc: str | None,
        operation: Operation | None = None,
        names: Mapping[str, str] = NO_NAMES,
        takes: frozenset[str] = frozenset(),
        direct: bool = False,
    ) -> None:
        self._direct = direct or operation is not None
        self.takes = takes  # the parameters that the function itself reads or writes into
        self.returns_tensor = False  # whether it is known to return one tensor, for type stubs
        self._names = names
        self.python_fully_qualified_name = name
        self.__name__ = name.rpartition(".")[2]
        self.__qualname__ = self.__name__
        self._doc = doc or ""
        self.golden_function = golden
        self.operation = operation
        self._run = run
        self._overloads = overloads(name)
        self._binders = tuple(binder(overload.signature, names) for overload in self._overloads)
        runtime = frozenset() if operation is None else operation.runtime
        first = self._overloads[0].signature.parameters
        self._runtime_places = tuple(
            i for i, parameter in enumerate(first) if names.get(parameter, parameter) in runtime
        )
        every = {parameter for overload in self._overloads for parameter in overload.signature.parameters}
        self._runtime_names = frozenset(parameter for parameter in every if names.get(parameter, parameter) in runtime)

    @property
    def __signature__(self) -> inspect.Signature:
        return self._overloads[0].signature

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """What it does, then every way to call it: what `help` prints."""
        calls = [f"    {self.__name__}{overload.signature}" for overload in self._overloads]
        return "\n".join([self._doc, "", *calls])

    def __call__(  # noqa: D102  (the operation documents itself)
        self, *args: Any, queue_id: int | None = None, cq_id: int | None = None, **kwargs: Any
    ) -> Any:
        if not self._direct or queue_id is not None or cq_id is not None or before or after or watchers:
            return self._hooked(args, kwargs, cq_id if queue_id is None else queue_id)
        # What decides the plan of the call as it was written. This is the way of nearly every call: no frame to spare.
        key: list[Any] = [self]
        tensors: list[Tensor] = []
        for place, value in enumerate(args):
            kind = type(value)
            if kind is Tensor:
                key.append(value.kind)
                tensors.append(value)
            elif place in self._runtime_places:
                key.append(kind)
            elif not add_to_key(value, key, tensors):
                return self._called(args, kwargs, None)
        if kwargs and not add_named(kwargs, self._runtime_names, key, tensors):
            return self._called(args, kwargs, None)
        mesh = tensors[0]._mesh if tensors else None
        if mesh is None:
            return self._called(args, kwargs, None)
        route: Route | View | None = mesh.program_cache.plans.get(tuple(key))
        if route is not None:
            return route.follow(mesh, tensors, args, kwargs)
        if self.operation is None:
            given = (*args, *kwargs.values())
            return traced(mesh, key, tensors, given, lambda: self._called(args, kwargs, None))
        return self._routed(self.operation, mesh, key, tensors, args, kwargs)

    def _hooked(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None) -> Any:
        for pre in before:
            pre(self, args, kwargs)
        result = self._called(args, kwargs, queue)
        for post in after:
            post(self, args, kwargs, result)
        return result

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None) -> Any:
        """The call bound to TT-NN's signature, on a queue."""
        arguments = snapshot_all(self.bind(args, kwargs))
        for tensor in tensors_in(arguments):
            tensor.check_allocated()
        try:
            if queue is None:
                return self._run(arguments)
            with command_queue(queue):
                return self._run(arguments)
        except Exception as problem:
            self._explain(arguments, problem)
            raise

    def _routed(
        self,
        operation: Operation,
        mesh: MeshDevice,
        key: list[Any],
        tensors: list[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Take the long way once, and remember the route."""
        arguments = snapshot_all(self.bind(args, dict(kwargs)))
        try:
            same = alias_of(operation, arguments)
            if same is not None:
                remember(mesh, key, view_route(same, tensors))
                return same
            ready = prepare(operation, arguments)
        except Exception as problem:
            self._explain(arguments, problem)
            raise
        free = {i for i in self._runtime_places if i < len(args) and type(args[i]) is not Tensor}
        free |= {len(args) + i for i, name in enumerate(kwargs) if name in self._runtime_names}
        route = route_of(self.bind, operation, ready, args, kwargs, free)
        if route is not None:
            remember(mesh, key, route)
        return execute(ready.plan, mesh, ready.tensors, ready.arguments, ready.outputs)

    def _explain(self, arguments: Arguments, problem: Exception) -> None:
        """Raise what is wrong with the arguments' types where that is why the call failed."""
        check_types(self.python_fully_qualified_name, arguments)
        if type(problem) is TypeError and "incompatible function arguments" not in str(problem):
            raise types_misfit(self.python_fully_qualified_name, arguments, problem) from problem

    def parameters(self) -> list[str]:
        """Every parameter of every overload, as the function calls it."""
        names = (self._names.get(p, p) for overload in self._overloads for p in overload.signature.parameters)
        return list(dict.fromkeys(names))

    def also_for(self, kind: type, run: Callable[..., Any]) -> None:
        """Hand calls with an argument of this type to another function, which gets the arguments it names."""
        usual, other = self._run, _picking(run)

        def choose(arguments: Arguments) -> Any:
            return (other if any(isinstance(value, kind) for value in arguments.values()) else usual)(arguments)

        self._run = choose

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """Arguments by name with defaults, through the first overload that takes the call."""
        if "from" in kwargs:  # TT-NN has a parameter of this name, which Python functions cannot
            kwargs["from_"] = kwargs.pop("from")
        problems = []
        for overload, binder_ in zip(self._overloads, self._binders, strict=True):
            try:
                bound: Arguments = binder_(*args, **kwargs)
            except TypeError as problem:
                problems.append(f"{self.__name__}{overload.signature}: {problem}")
                continue
            missing = [name for name, value in bound.items() if value is REQUIRED]
            if not missing:
                return bound
            problems.append(f"{self.__name__}{overload.signature}: missing {missing}")
        raise TypeError(
            f"{self.python_fully_qualified_name}(): incompatible function arguments. " + " | ".join(problems)
        )

    def __repr__(self) -> str:
        return f"<operation {self.python_fully_qualified_name}>"


def binder(signature: inspect.Signature, names: Mapping[str, str] = NO_NAMES) -> Callable[..., Arguments]:
    """A function with this signature that returns its arguments as a dict: Python's own binding is the fastest.

    Args:
        names: parameters of this overload -> what the dict calls them.
    """
    defaults = {f"_default_{name}": p.default for name, p in signature.parameters.items() if p.default is not p.empty}
    parts, keyword_only = [], False
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            parts.append("*")
            keyword_only = True
        parts.append(name if parameter.default is parameter.empty else f"{name}=_default_{name}")
    items = ", ".join(f"{names.get(name, name)!r}: {name}" for name in signature.parameters)
    source = f"def bind({', '.join(parts)}):\n    return {{{items}}}"
    scope: dict[str, Any] = dict(defaults)
    exec(source, scope)
    bound: Callable[..., Arguments] = scope["bind"]
    return bound


catalogue: dict[str, Entry] = {}


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
    writes: str | None = None,
    outputs: Sequence[str] | None = None,
    host: bool = False,
    names: Mapping[str, str] = NO_NAMES,
    in_place: bool = False,
    specialise: Specialise | None = None,
    takes: Iterable[str] | None = None,
    recheck: bool = False,
    alias: Callable[[Call], Sequence[int] | None] | None = None,
    least_rank: int = 0,
) -> Callable[[Callable[..., Any]], OpFunction]:
    """Enter a lane function as the operation of this name.

    Args:
        names: what overloads call a parameter -> what the lane function calls it.
        takes: the parameters of the lane function, where its signature does not say.
        least_rank: how many dims of the first tensor the lane function counts on.
        alias: the shape of the result where TT-NN hands the first tensor's own memory back, else None.
    """

    def enter(lane: Callable[..., Any]) -> OpFunction:
        operation = Operation(
            name,
            lane,
            out,
            check=check,
            topology=topology,
            runtime=frozenset(runtime),
            programs=programs,
            scratch=scratch,
            writes=writes,
            outputs=None if outputs is None else tuple(outputs),
            host=host,
            in_place=in_place,
            specialise=specialise,
            recheck=recheck,
            alias=alias,
            least_rank=least_rank,
            lane_arguments=frozenset(inspect.signature(lane).parameters if takes is None else takes),
        )
        run = functools.partial(launch, operation)
        targets = OUTPUTS if operation.outputs is None else operation.outputs
        taken = operation.lane_arguments.union(targets)
        entered = _entered(name, run, golden, lane.__doc__, operation, names, taken)
        entered.returns_tensor = lane.__annotations__.get("return") == "torch.Tensor"
        return entered

    return enter


def composite(
    name: str, *, golden: Golden | None = None, names: Mapping[str, str] = NO_NAMES, direct: bool = False
) -> Callable[[Callable[..., Any]], OpFunction]:
    """Enter a function that calls other operations; it gets the arguments it names.

    `direct`: kinds and options alone decide what it does to device tensors, so that a call that came to one program or
    one view needs no second thought.
    """

    def enter(function: Callable[..., Any]) -> OpFunction:
        taken = frozenset(inspect.signature(function).parameters)
        entered = _entered(name, _picking(function), golden, function.__doc__, None, names, taken, direct=direct)
        entered.returns_tensor = function.__annotations__.get("return") == "Tensor"
        return entered

    return enter


def alias(name: str, of: OpFunction) -> OpFunction:
    """Enter a second name of an operation."""
    catalogue[name] = Entry(
        name, of, catalogue[of.python_fully_qualified_name].operation, of.golden_function, of.__name__
    )
    return of


def get_golden_function(operation: Any) -> Golden:
    """The torch function an operation, or anything with a `golden_function`, is compared with."""
    if not hasattr(operation, "golden_function"):
        raise MeshError(
            f"{operation!r} is not an operation", expected="an operation of ttnn", fix="Pass ttnn.add, say."
        )
    golden: Golden | None = operation.golden_function
    if golden is None:
        raise NotEmulatedError(
            f"{getattr(operation, 'python_fully_qualified_name', operation)} has no golden function",
            expected="an operation with a torch equivalent",
            fix="Compare with your own torch code.",
        )
    return _lenient(golden)


# Where results go and how they are computed is no concern of torch, but tests pass it on to goldens.
WITHOUT_MEANING_IN_TORCH = frozenset({
    "memory_config", "device", "queue_id", "cq_id", "output_tensor", "optional_output_tensor", "compute_kernel_config",
    "program_config", "core_grid", "sub_core_grids", "fast_and_approximate_mode", "layout",
})  # fmt: skip


def _lenient(golden: Golden) -> Golden:
    """The golden, deaf to options that have no meaning in torch and that it does not name."""
    try:
        parameters = inspect.signature(golden).parameters
    except ValueError:  # torch's own functions do not tell theirs
        return golden
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return golden
    ignored = WITHOUT_MEANING_IN_TORCH.difference(parameters)

    @functools.wraps(golden)
    def answer(*args: Any, **options: Any) -> Any:
        return golden(*args, **{name: value for name, value in options.items() if name not in ignored})

    return answer


def _picking(function: Callable[..., Any]) -> Callable[[Arguments], Any]:
    """A function of the arguments that it names, called with all of them."""
    wanted = frozenset(inspect.signature(function).parameters)

    def call(arguments: Arguments) -> Any:
        return function(**{key: value for key, value in arguments.items() if key in wanted})

    return call


def _entered(
    name: str,
    call: Callable[[Arguments], Any],
    golden: Golden | None,
    doc: str | None,
    operation: Operation | None,
    names: Mapping[str, str],
    takes: frozenset[str],
    *,
    direct: bool = False,
) -> OpFunction:
    assert name not in catalogue, f"{name} is entered twice"
    function = OpFunction(name, call, golden, doc, operation, names, takes, direct)
    catalogue[name] = Entry(name, function, operation, golden)
    return function
