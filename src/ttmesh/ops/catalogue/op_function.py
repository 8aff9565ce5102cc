"""Operations as Python sees them: functions with TT-NN's names and signatures, bound to what they launch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import command_queue, sub_device
from ttmesh.mesh.queue.plan_table import Key
from ttmesh.ops.catalogue.signatures import REQUIRED, Overload, check_known, list_parameters, overloads
from ttmesh.ops.configs.refused_options import REFUSED, check_options
from ttmesh.tensor.calls.argument_errors import (
    check_plain_values,
    check_types,
    explain_keyword,
    list_types,
    types_misfit,
)
from ttmesh.tensor.calls.argument_snapshots import snapshot_all
from ttmesh.tensor.calls.binding_types import Types, explain_type, find_types
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.calls.lane_calls import Arguments
from ttmesh.tensor.calls.launch_op import tensors_in
from ttmesh.tensor.calls.operation import Operation
from ttmesh.tensor.calls.plan import check_allocated
from ttmesh.tensor.observer import observer
from ttmesh.tensor.tensor import Tensor

Golden = Callable[..., Any]
NO_NAMES: Mapping[str, str] = MappingProxyType({})


class OpFunction(Gate):
    """A callable TT-NN operation, with its qualified name and golden function."""

    python_fully_qualified_name: str
    golden_function: Golden | None

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
        own_options: frozenset[str] = frozenset(),
    ) -> None:
        self.direct = direct or operation is not None
        self.own_options = own_options  # keyword options that ttmesh adds to TT-NN's, of collectives
        self.takes = takes  # the parameters that the function reads or writes
        self.returns_tensor = False  # whether it returns exactly one tensor, for type stubs
        self._names = names
        self.python_fully_qualified_name = name
        self.__name__ = name.rpartition(".")[2]
        self.__qualname__ = self.__name__
        self._doc = doc or ""
        self.golden_function = golden
        self.operation = operation
        self._run = run
        self._refused = REFUSED.get(name, ())
        check_known(name)
        # Plain attributes, because every call reads them, and few operations have any.
        self.runtime_places: tuple[int, ...] = ()
        self.runtime_names: frozenset[str] = frozenset()
        if operation is not None and operation.runtime:
            places = enumerate(self._overloads[0].signature.parameters)
            self.runtime_places = tuple(i for i, name in places if names.get(name, name) in operation.runtime)
            self.runtime_names = frozenset(n for n in self._parameters if names.get(n, n) in operation.runtime)

    # What follows from the signature is worked out at the first call: a program calls few of a thousand operations.

    @cached_property
    def _overloads(self) -> tuple[Overload, ...]:
        return overloads(self.python_fully_qualified_name)

    @cached_property
    def _binders(self) -> tuple[Callable[..., Arguments], ...]:
        first = self._overloads[0].signature
        return tuple(
            binder(overload.signature, _choose_keys(overload.signature, first, self._names))
            for overload in self._overloads
        )

    @cached_property
    def _types(self) -> tuple[Types, ...]:
        name = self.python_fully_qualified_name
        return tuple(find_types(name, list(overload.signature.parameters)) for overload in self._overloads)

    @cached_property
    def _parameters(self) -> frozenset[str]:
        return frozenset(parameter for overload in self._overloads for parameter in overload.signature.parameters)

    @cached_property
    def _numbers(self) -> tuple[str, ...]:
        return tuple(
            self._names.get(parameter, parameter)
            for parameter, declared in self._overloads[0].signature.parameters.items()
            if isinstance(declared.default, bool | int | float | str) or declared.annotation is int
            if parameter != "seeds"  # those may be a tensor
        )

    @property
    def _on_sub_device(self) -> bool:
        return "subdevice_id" in self._parameters

    @property
    def __signature__(self) -> inspect.Signature:
        return self._overloads[0].signature

    @property
    def __doc__(self) -> str:  # type: ignore[override]
        """The description and all signatures, as printed by `help`."""
        calls = [f"    {self.__name__}{overload.signature}" for overload in self._overloads]
        own_options = [f"    ttmesh's own options: {', '.join(sorted(self.own_options))}"] if self.own_options else []
        return "\n".join([self._doc, "", *calls, *own_options])

    def call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None) -> Any:
        """Run the call and notify every watcher before and after it."""
        watchers = observer.watchers
        for watcher in watchers:
            watcher.before_operation(self, args, kwargs)
        try:
            result = self.call(args, kwargs, queue)
        except BaseException as error:  # raised again, once watchers know
            for watcher in watchers:
                watcher.after_failure(self, error)
            raise
        for watcher in watchers:
            watcher.after_operation(self, args, kwargs, result)
        return result

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None = None) -> Any:
        """Bind the call to TT-NN's signature and run it, on a queue and on a sub-device."""
        arguments = snapshot_all(self.bind(args, dict(kwargs)))
        self._check_options(arguments)
        for place, tensor in enumerate(tensors_in(arguments)):
            check_allocated("" if place else self.python_fully_qualified_name, tensor)
        try:
            with ExitStack() as stack:
                if queue is not None:
                    stack.enter_context(command_queue(queue))
                if self._on_sub_device and arguments.get("subdevice_id") is not None:
                    stack.enter_context(sub_device(arguments["subdevice_id"]))
                return self._run(arguments)
        except Exception as problem:  # raised again, with the arguments where they explain it
            self.explain(arguments, problem)
            raise

    def call_first(
        self, mesh: MeshDevice, key: Key, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a first call; a call on a sub-device gets no fast path, because it would not carry the sub-device."""
        if self._on_sub_device and self.bind(args, dict(kwargs)).get("subdevice_id") is not None:
            return self.call(args, kwargs)
        if self._refused:
            self._check_options(self.bind(args, dict(kwargs)))
        return super().call_first(mesh, key, tensors, args, kwargs)

    def _check_options(self, arguments: Arguments) -> None:
        """Refuse options that are not emulated."""
        if self._refused:
            parameters = (item for form in self._overloads for item in form.signature.parameters.items())
            defaults = {name: parameter.default for name, parameter in parameters}
            check_options(self.python_fully_qualified_name, self._refused, arguments, defaults)

    def explain(self, arguments: Arguments, problem: Exception) -> None:
        """Raise a type error that names the argument, if a wrong type made the call fail."""
        check_types(self.python_fully_qualified_name, arguments)
        if type(problem) is TypeError and "incompatible function arguments" not in str(problem):
            raise types_misfit(self.python_fully_qualified_name, arguments, problem) from problem

    def parameters(self) -> list[str]:
        """Every parameter of every overload, by the name that the function uses."""
        names = (self._names.get(p, p) for overload in self._overloads for p in overload.signature.parameters)
        return list(dict.fromkeys(names))

    def dispatch_type(self, kind: type, run: Callable[..., Any]) -> None:
        """Dispatch calls with an argument of this type to another function, which gets the arguments it names."""
        default, other = self._run, select_arguments(run)

        def choose(arguments: Arguments) -> Any:
            return (other if any(isinstance(value, kind) for value in arguments.values()) else default)(arguments)

        self._run = choose

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """Arguments by name with defaults, by the first overload that accepts the call."""
        if "from" in kwargs:  # TT-NN has a parameter of this name, which Python functions cannot
            kwargs["from_"] = kwargs.pop("from")
        own_values = {name: kwargs.pop(name) for name in self.own_options if name in kwargs} if self.own_options else {}
        problems = []
        for overload, binder_, types in zip(self._overloads, self._binders, self._types, strict=True):
            try:
                bound: Arguments = binder_(*args, **kwargs)
            except TypeError as problem:
                reason = explain_keyword(kwargs, overload.signature.parameters) or str(problem).removeprefix("bind() ")
                if "tensors" in overload.signature.parameters and args and isinstance(args[0], Tensor):
                    reason += ". Pass the tensors as a list: [a, b]"
                problems.append(f"{self.__name__}{overload.signature}: {reason}")
                continue
            missing = [name for name, value in bound.items() if value is REQUIRED]
            misplaced = [name for name in self._numbers if isinstance(bound.get(name), Tensor)]
            misfit = types and explain_type(
                types, {**dict(zip(overload.signature.parameters, args, strict=False)), **kwargs}
            )
            if not missing and not misplaced and not misfit:
                check_plain_values(self.python_fully_qualified_name, bound)
                return {**bound, **own_values} if own_values else bound
            if misfit:
                check_types(self.python_fully_qualified_name, bound)
                check_plain_values(self.python_fully_qualified_name, bound)
            reason = (misfit and f"{misfit}. {list_types(bound)}") or (
                f"{misplaced[0]} is a ttnn.Tensor, not a number or word" if misplaced else f"missing {missing}"
            )
            problems.append(f"{self.__name__}{overload.signature}: {reason}")
        if self.own_options:
            problems.append(f"ttmesh's own options: {', '.join(sorted(self.own_options))}")
        raise TypeError(
            f"{self.python_fully_qualified_name}(): incompatible function arguments. " + " | ".join(problems)
        )

    @property
    def name(self) -> str:
        """Its name without the module's."""
        return self.__name__

    def __repr__(self) -> str:
        return f"<operation {self.python_fully_qualified_name}>"


def _choose_keys(signature: inspect.Signature, first: inspect.Signature, names: Mapping[str, str]) -> Mapping[str, str]:
    """The keys of an overload's parameters; one whose key is another parameter's has the first overload's at its place."""
    taken, places = signature.parameters, list(first.parameters)
    return {name: places[i] if names[name] in taken else names[name] for i, name in enumerate(taken) if name in names}


def binder(signature: inspect.Signature, names: Mapping[str, str] = NO_NAMES) -> Callable[..., Arguments]:
    """A function with this signature that returns its arguments as a dict.

    Generated, because Python's own binding takes 1 µs and `Signature.bind` takes 48.

    Args:
        names: parameters of this overload -> their keys in the dict.
    """
    defaults = {f"_default_{name}": p.default for name, p in signature.parameters.items() if p.default is not p.empty}
    declarations, keyword_only = [], False
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not keyword_only:
            declarations.append("*")
            keyword_only = True
        declarations.append(name if parameter.default is parameter.empty else f"{name}=_default_{name}")
    items = ", ".join(f"{names.get(name, name)!r}: {name}" for name in signature.parameters)
    source = f"def bind({', '.join(declarations)}):\n    return {{{items}}}"
    scope: dict[str, Any] = dict(defaults)
    exec(source, scope)
    bound: Callable[..., Arguments] = scope["bind"]
    return bound


def select_arguments(function: Callable[..., Any]) -> Callable[[Arguments], Any]:
    """Wrap a function so that it can be called with all arguments and receives those that it names."""
    names = frozenset(list_parameters(function))

    def call(arguments: Arguments) -> Any:
        return function(**{key: value for key, value in arguments.items() if key in names})

    return call
