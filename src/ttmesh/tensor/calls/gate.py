"""The gate that every call passes: its key finds the fast path of an earlier call like it; a new call leaves one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any

from ttmesh.base.numerics_mode import state as numerics
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.plan_table import Key
from ttmesh.tensor.calls.argument_snapshots import snapshot_all
from ttmesh.tensor.calls.fast_paths import BoundPath, learn, make_plan_path, make_view_path
from ttmesh.tensor.calls.lane_calls import Arguments
from ttmesh.tensor.calls.launch_op import alias_of, launch, prepare, separate
from ttmesh.tensor.calls.operation import Operation
from ttmesh.tensor.calls.plan import execute
from ttmesh.tensor.calls.plan_keys import ATOMS, add_to_key
from ttmesh.tensor.observer import observer, watch_transfer
from ttmesh.tensor.tensor import Tensor


class Gate:
    """Something that is called with tensors.

    `direct`: kinds and options alone decide what it does to device tensors, so that a call like one before needs no
    second thought. `operation`: what it launches; None where it is a function that calls others.
    """

    operation: Operation | None
    direct: bool
    runtime_places: tuple[int, ...]  # of arguments of which the key holds the type alone
    runtime_names: frozenset[str]

    def __call__(  # noqa: D102  (operations document themselves)
        self, *args: Any, queue_id: Any = None, cq_id: Any = None, **kwargs: Any
    ) -> Any:
        if observer.active or not self.direct or queue_id is not None or cq_id is not None:
            return self.call_watched(args, kwargs, cq_id if queue_id is None else queue_id)
        # The key of the call as it was written. Nearly every call takes these lines and no others, so they call nothing
        # for the arguments that most calls have.
        key: list[Any] = [self, numerics.mode]
        tensors: list[Tensor] = []
        for place, value in enumerate(args):
            kind = type(value)
            if kind is Tensor:
                key.append(value.kind)
                tensors.append(value)
            elif place in self.runtime_places:
                key.append(kind)
            elif not add_to_key(value, key, tensors):
                return self.call(args, kwargs)
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                kind = type(value)
                if kind is Tensor:
                    key.append(value.kind)
                    tensors.append(value)
                elif name in self.runtime_names:
                    key.append(kind)
                elif kind in ATOMS:
                    key.append(kind)
                    key.append(value)
                elif not add_to_key(value, key, tensors):
                    return self.call(args, kwargs)
        mesh = tensors[0]._mesh if tensors else None
        if mesh is None:
            return self.call(args, kwargs)
        path = mesh.plans.get(tuple(key))
        if path is None:
            return self.call_first(mesh, tuple(key), tensors, args, kwargs)
        return path.run(mesh, tensors, args, kwargs)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None = None) -> Any:
        """Bind the arguments and carry the call out."""
        raise NotImplementedError

    def call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None) -> Any:
        """The same, reported to the watchers."""
        return self.call(args, kwargs, queue)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """The arguments by name."""
        raise NotImplementedError

    def explain(self, arguments: Arguments, problem: Exception) -> None:
        """Raise a better error where one is known."""

    def call_first(
        self, mesh: MeshDevice, key: Key, tensors: list[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Bind the call, and keep a fast path for calls like it."""
        operation = self.operation
        if operation is None:
            return learn(self, mesh, key, tensors, args, kwargs)
        arguments = snapshot_all(self.bind(args, dict(kwargs)))
        try:
            same = alias_of(operation, arguments)
            if same is not None:
                mesh.plans[key] = make_view_path(same, tensors)
                return same
            ready = prepare(operation, arguments)
        except Exception as problem:  # raised again, with the arguments where they explain it
            self.explain(arguments, problem)
            raise
        free = {i for i in self.runtime_places if i < len(args) and type(args[i]) is not Tensor}
        free |= {len(args) + i for i, name in enumerate(kwargs) if name in self.runtime_names}
        mesh.plans[key] = make_plan_path(self.bind, operation, ready, args, kwargs, free) or BoundPath(self)
        return execute(ready.plan, mesh, ready.tensors, ready.arguments, ready.outputs)


class DeviceOperation(Gate):
    """A device program that composites call; it has no name in TT-NN and takes keyword arguments."""

    direct = True
    runtime_places = ()

    def __init__(self, operation: Operation) -> None:
        self.operation: Operation = operation
        self.runtime_names = operation.runtime
        self.__name__ = operation.name
        self.__doc__ = operation.lane.__doc__

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None = None) -> Any:
        """Launch it."""
        assert not args, "device operations are called by keywords"
        assert queue is None, "composites choose the queue"
        return launch(self.operation, kwargs)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        """Nothing to do: all arguments have names."""
        return kwargs


class TensorFunction(Gate):
    """A function of tensors beside the catalogue: kinds and options alone decide what it does to device tensors."""

    operation = None
    direct = True
    runtime_places = ()
    runtime_names = frozenset()

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        update_wrapper(self, function)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None = None) -> Any:
        """Call the function."""
        for value in (*args, *kwargs.values()):
            if type(value) is Tensor:
                value.check_allocated()
        result = self._function(*args, **kwargs)
        return separate(result) if any(value is result for value in args) and type(result) is Tensor else result

    def call_watched(self, args: tuple[Any, ...], kwargs: dict[str, Any], queue: int | None) -> Any:
        """The same, reported to the watchers as a transfer."""
        return watch_transfer(f"ttnn.{self._function.__name__}", lambda *a, **k: self.call(a, k, queue), args, kwargs)
