"""Traces of programs as graphs: what torch functions, torch modules and operations did with tensors (`ttnn.tracer`)."""

from __future__ import annotations

import importlib
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from ttmesh.base.ttnn_config import CONFIG
from ttmesh.ops.graph.traced_nodes import (
    ArgumentPairs,
    InputTensorIndex,
    ModuleIOTensor,
    PositionalArgumentName,
    TorchFunction,
    TorchModule,
    TorchModuleInput,
    TorchParameter,
    TorchTensor,
    TracedNode,
    TTNNOperation,
    TTNNTensor,
)
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.observer import Watcher, observer
from ttmesh.tensor.tensor import Tensor

if TYPE_CHECKING:
    import networkx

_CREATION = frozenset(
    "arange empty eye full linspace normal ones rand randint randn randperm tensor zeros".split()  # noqa: SIM905
)  # torch functions whose nodes are named as inputs
_counter = itertools.count()
_graphs: dict[
    int, tuple[weakref.ref[Any], networkx.MultiDiGraph]
] = {}  # id of a tensor -> it and the graph that made it


@dataclass
class _Level:
    """The graph of the program, or of one call of a module, while it grows."""

    graph: networkx.MultiDiGraph
    places: dict[int, tuple[weakref.ref[Any], TracedNode, int]] = field(default_factory=dict)  # by the id of a tensor

    def put(self, tensor: Any, node: TracedNode, index: int) -> None:
        """Remember which output of which node a tensor is; the tensor itself is not kept alive."""
        self.places[id(tensor)] = (weakref.ref(tensor), node, index)

    def find(self, tensor: Any) -> tuple[TracedNode, int] | None:
        """The node whose output the tensor is."""
        found = self.places.get(id(tensor))
        return None if found is None or found[0]() is not tensor else found[1:]


class GraphTracer(Watcher):
    """Records what runs while it is enabled."""

    def __init__(self) -> None:
        self._levels: list[_Level] = []
        self._inside = 0  # operations that are running: what they call is theirs
        self._names: dict[int, str] = {}  # id of a module or parameter -> its name in the outermost module
        self._mode: _TorchCalls | None = None
        self._call_module: Any = None

    @property
    def is_enabled(self) -> bool:
        """Whether it records."""
        return self._mode is not None

    def enable(self) -> None:
        """Start a graph."""
        if self.is_enabled:
            raise RuntimeError("Cannot nest trace calls")
        self._levels, self._inside = [_Level(_new_graph())], 0
        self._mode = _TorchCalls(self)
        self._mode.__enter__()  # type: ignore[no-untyped-call]
        self._call_module = torch.nn.Module.__call__
        torch.nn.Module.__call__ = _trace_module  # type: ignore[method-assign]
        observer.add(self)

    def disable(self) -> None:
        """Stop; the graphs stay with their tensors."""
        if self._mode is not None:
            observer.remove(self)
            torch.nn.Module.__call__ = self._call_module  # type: ignore[method-assign]
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode = None

    # operations

    def before_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What follows is called by the operation."""
        self._inside += 1

    def after_failure(self, operation: Gate, error: BaseException) -> None:
        """The operation is over."""
        self._inside -= 1

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Add the operation, unless another called it."""
        self._inside -= 1
        name = getattr(operation, "python_fully_qualified_name", type(operation).__name__)
        self._add_operation(name, operation, args, kwargs, result)

    def after_transfer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Add a transfer, unless an operation made it."""
        self._add_operation(name, None, args, kwargs, result)

    def _add_operation(self, name: str, operation: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        if not self._inside:
            inputs, given = _name_arguments(args, kwargs)
            self.add(name, TTNNOperation(name, operation, given), inputs, _tensors_in(result))

    # torch

    def add_function(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Add a call of a torch function that gives tensors."""
        outputs = _tensors_in(result)
        if outputs and not self._inside:
            inputs, given = _name_arguments(*_name_by_signature(function, args, kwargs))
            name = "torch_input" if function.__name__ in _CREATION else function.__name__
            self.add(name, TorchFunction(function, given), inputs, outputs)

    def call_module(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a module and record its calls in a separate graph."""
        if self._inside:
            return self._call_module(module, *args, **kwargs)
        if len(self._levels) == 1:
            named = itertools.chain(module.named_modules(), module.named_parameters())
            self._names = {id(one): name for name, one in named}
        level, inputs, given = _Level(_new_graph()), [], _tensors_in([args, kwargs])
        for name, tensor in zip(_argument_names(module.forward, args, kwargs), given, strict=False):
            node = _node("module_input")
            level.graph.add_node(node, operation=TorchModuleInput(name), **_describe([tensor]))
            level.put(tensor, node, 0)
            inputs.append(ModuleIOTensor(name, node, 0))
        self._levels.append(level)
        try:
            result = self._call_module(module, *args, **kwargs)
            outputs = _tensors_in(result)
            places = [self._locate(tensor) for tensor in outputs]
        finally:
            self._levels.pop()
        ends = [ModuleIOTensor(f"output_{i}", *place) for i, place in enumerate(places)]
        name = self._names.get(id(module), "")
        self.add(name, TorchModule(module, level.graph, inputs, ends, name), given[: len(inputs)], outputs)
        return result

    def add(self, name: str, operation: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Add a node with its edges to the graph that grows."""
        places = [self._locate(tensor) for tensor in inputs]
        level, node = self._levels[-1], _node(name)
        level.graph.add_node(node, operation=operation, **_describe(outputs))
        for sink, (source, index) in enumerate(places):
            level.graph.add_edge(source, node, source_output_index=index, sink_input_index=sink)
        for index, tensor in enumerate(outputs):
            level.put(tensor, node, index)
            if len(self._levels) == 1:
                _graphs[id(tensor)] = (weakref.ref(tensor, _forget(id(tensor))), level.graph)

    def _locate(self, tensor: Any) -> tuple[TracedNode, int]:
        level = self._levels[-1]
        found = level.find(tensor)
        if found is None:
            operation: Any = TTNNTensor() if isinstance(tensor, Tensor) else TorchTensor(tensor)
            node = _node("ttnn_input" if isinstance(tensor, Tensor) else "torch_input")
            if isinstance(tensor, torch.nn.Parameter):
                operation, node = TorchParameter(tensor, self._names.get(id(tensor), "")), _node("torch_parameter")
            level.graph.add_node(node, operation=operation, **_describe([tensor]))
            level.put(tensor, node, 0)
            found = (node, 0)
        return found


class _TorchCalls(TorchFunctionMode):
    """Sees every call of a torch function."""

    def __init__(self, tracer: GraphTracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        caller = _first_caller_outside_torch()
        if caller == __name__ or not caller.startswith("ttmesh."):  # a module's calls are seen from below call_module
            self._tracer.add_function(function, args, kwargs or {}, result)
        return result


def _first_caller_outside_torch() -> str:
    """The name of the module whose code called torch."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", ""))


def _trace_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
    return tracer.call_module(module, args, kwargs)


def _new_graph() -> networkx.MultiDiGraph:
    return importlib.import_module("networkx").MultiDiGraph()  # takes 0.2 s to import, and few programs trace


def _node(name: str) -> TracedNode:
    unique_id = next(_counter)
    return TracedNode(unique_id, f"{name}_{unique_id}")


def _forget(key: int) -> Callable[[Any], None]:
    return lambda _: _graphs.pop(key, None) and None


def _describe(tensors: list[Any]) -> dict[str, Any]:
    """The attributes of a node, from its outputs."""
    found: dict[str, Any] = {
        "shapes": tuple(tensor.shape if isinstance(tensor, Tensor) else tuple(tensor.shape) for tensor in tensors),
        "dtypes": tuple(tensor.dtype for tensor in tensors),
    }
    if any(isinstance(tensor, Tensor) for tensor in tensors):
        found["layouts"] = tuple(tensor.layout for tensor in tensors)
        found["memory_configs"] = tuple(_memory_config(tensor) for tensor in tensors)
    return found


def _memory_config(tensor: Any) -> Any:
    on_device = isinstance(tensor, Tensor) and tensor.is_allocated() and tensor.device() is not None
    return tensor.memory_config() if on_device else None


def _tensors_in(value: Any) -> list[Any]:
    """The tensors in a value, however nested."""
    if isinstance(value, torch.Tensor | Tensor):
        return [value]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in _tensors_in(item)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors_in(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [tensor for item in fields(value) for tensor in _tensors_in(getattr(value, item.name))]
    return []


def _name_arguments(args: Any, kwargs: dict[str, Any]) -> tuple[list[Any], ArgumentPairs]:
    """The tensors of a call, and its arguments by place and name with places of tensors instead of the tensors."""
    inputs: list[Any] = []
    by_place = [(PositionalArgumentName(i), _replace_tensors(value, inputs)) for i, value in enumerate(args)]
    return inputs, [*by_place, *((name, _replace_tensors(value, inputs)) for name, value in kwargs.items())]


def _name_by_signature(function: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments by the names of a function's parameters, without defaults; as given where it has no such names."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # compiled
        return args, kwargs
    kinds = {parameter.kind for parameter in parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY}:
        return args, kwargs
    named = {**dict(zip(parameters, args, strict=False)), **kwargs}
    return (), {name: value for name, value in named.items() if not _is_default(value, parameters.get(name))}


def _is_default(value: Any, parameter: inspect.Parameter | None) -> bool:
    return parameter is not None and type(value) is type(parameter.default) and value == parameter.default


def _replace_tensors(value: Any, inputs: list[Any]) -> Any:
    # Not a closure: one that calls itself would keep the tensors alive until garbage is collected.
    if isinstance(value, torch.Tensor | Tensor):
        inputs.append(value)
        return InputTensorIndex(len(inputs) - 1)
    if isinstance(value, list | tuple) and _tensors_in(value):
        replaced = [_replace_tensors(item, inputs) for item in value]
        return tuple(replaced) if type(value) is tuple else replaced
    return value


def _argument_names(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """A name for every tensor of a call, from the function's parameters."""
    bound = inspect.signature(function).bind_partial(*args, **kwargs)
    return [name for name, value in bound.arguments.items() for _ in _tensors_in(value)]


tracer = GraphTracer()


def enable_tracing() -> None:
    """Record a graph from now on; TT-NN traces in slow runtime mode only."""
    if CONFIG.enable_fast_runtime_mode:
        raise ValueError(
            "Tracing is not supported in fast runtime mode. Start the program with "
            """TTNN_CONFIG_OVERRIDES='{"enable_fast_runtime_mode": false}'."""
        )
    if tracer.is_enabled:
        raise ValueError("Tracing is already enabled.")
    tracer.enable()


def enable_torch_tracing() -> None:
    """Record a graph from now on, in any runtime mode (`ttnn.torch_tracer.enable_tracing`)."""
    tracer.enable()


def disable_tracing() -> None:
    """Stop recording."""
    tracer.disable()


def is_tracing_enabled() -> bool:
    """Whether a graph is being recorded."""
    return tracer.is_enabled


@contextmanager
def trace() -> Iterator[None]:
    """Record the graph of what runs inside the `with` block."""
    enable_tracing()
    try:
        yield
    finally:
        disable_tracing()


@contextmanager
def trace_torch() -> Iterator[None]:
    """Record the graph of what runs inside the `with` block, in any runtime mode (`ttnn.torch_tracer.trace`)."""
    tracer.enable()
    try:
        yield
    finally:
        tracer.disable()


def get_graph(value: Any, flatten: bool = False) -> networkx.MultiDiGraph:
    """The graph of the trace that made a tensor or several; `flatten` puts the graphs of modules in their places."""
    from_traces = [_graphs.get(id(tensor)) for tensor in _tensors_in(value)]
    graphs = [found[1] for found in from_traces if found is not None]
    networkx = importlib.import_module("networkx")
    if isinstance(value, networkx.MultiDiGraph):
        graphs = [value]
    if not graphs:
        raise RuntimeError(f"Unexpected type {type(value)}: it holds no tensor that was made inside `with trace():`")
    graph = networkx.compose_all(graphs)
    return flatten_graph(graph) if flatten else graph


def flatten_graph(graph: networkx.MultiDiGraph) -> networkx.MultiDiGraph:
    """The same graph with every module replaced by what it called."""
    flat = _new_graph()
    _copy_flat(graph, flat, {})
    return flat


Places = dict[
    tuple[TracedNode, int], tuple[TracedNode, int]
]  # output of a module, or its input node -> output of a plain node


def _copy_flat(graph: networkx.MultiDiGraph, flat: networkx.MultiDiGraph, places: Places) -> None:
    for node in sorted(graph):
        attributes = graph.nodes[node]
        edges = sorted(graph.in_edges(node, data=True), key=lambda edge: edge[2]["sink_input_index"])
        sources = [(source, data["source_output_index"]) for source, _, data in edges]
        sources = [places.get(source, source) for source in sources]
        operation = attributes["operation"]
        if isinstance(operation, TorchModule):
            places.update({(one.node, 0): source for one, source in zip(operation.inputs, sources, strict=True)})
            _copy_flat(operation.graph, flat, places)
            for index, end in enumerate(operation.outputs):
                inner = (end.node, end.output_index)
                places[(node, index)] = places.get(inner, inner)
        elif not isinstance(operation, TorchModuleInput):
            flat.add_node(node, **attributes)
            for sink, (source, index) in enumerate(sources):
                flat.add_edge(source, node, source_output_index=index, sink_input_index=sink)
