"""The nodes of a captured graph, read in order into rows of the database.

A row of `operations` is an outermost function; what it calls is part of it. Functions of HIDDEN and the `from_torch` calls
before the first other operation (weights being loaded) are left out, what they call is not.
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ttmesh.monitor.graph_reports.tensor_rows import (
    BufferRow,
    TensorRow,
    make_buffer_row,
    make_device_tensor_rows,
    make_tensor_row,
    number_uses,
)

log = logging.getLogger(__name__)
Json = Mapping[str, Any]
Node = dict[str, Any]
HIDDEN = (
    "ttnn::convert_python_tensor_to_tt_tensor",
    "tt::tt_metal::detail::convert_tt_tensor_to_framework_tensor",
    "Tensor::deallocate",
    "Tensor::to_device",
    "Tensor::reshape",
    "tt::tt_metal::to_dtype",
)
EXECUTIONS_PER_OPERATION = 1024  # an execution's id is its operation's id times this, and its index


@dataclass
class OpenFunction:
    """A function that started and has not ended; `reported`: it is an operation of the database."""

    node: Node
    name: str
    reported: bool
    record: Json  # what Python recorded of the call, empty if nothing
    error: tuple[str, str] | None = None

    @property
    def stack(self) -> str:
        """The call stack that Python recorded."""
        return "\n".join(self.record.get("python_stack_trace", ()))


@dataclass
class InnerCalls:
    """What the functions inside an operation did."""

    nodes: list[Node] = field(default_factory=list)  # everything that happened, the operation's own nodes too
    inputs: list[int] = field(default_factory=list)  # of the functions inside, and what is freed inside
    used: set[int] = field(default_factory=set)  # inputs of the functions inside alone
    outputs: list[Node] = field(default_factory=list)
    made: set[int] = field(default_factory=set)  # results, without those written in place
    abort: tuple[str, str] | None = None  # the innermost function that an exception left, and why


class GraphReader:
    """Reads one graph; `rows` has the rows of each table afterwards."""

    def __init__(
        self,
        graph: Sequence[Node],
        *,
        base_operation_id: int,
        devices: Iterable[Json],
        python_io: Iterable[Json],
        live_buffers: Mapping[str, Iterable[Json]],
        rank: int,
    ) -> None:
        self.rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.operation_ids: dict[int, int] = {}  # counter of the first node -> id
        self._graph = graph
        self._base = base_operation_id
        self._count = 0
        self._devices = {device.get("device_id", 0): device for device in devices}
        self._records: dict[str, deque[Json]] = defaultdict(deque)
        for record in python_io:
            self._records[record["name"]].append(record)
        self._live_buffers = live_buffers
        self._rank = rank
        self._open: list[OpenFunction] = []
        self._inner = InnerCalls()
        self._computes = False  # whether an operation that is no upload was seen
        self._buffers: list[BufferRow] = []
        self._tensors: dict[int, TensorRow] = {}
        self._tensor_at: dict[int, int] = {}  # address -> the first tensor there
        self._captured: dict[int, Node] = {}  # ids that only Python gave -> the captured tensor
        for node in graph:
            if self._open:
                self._inner.nodes.append(node)
            getattr(self, f"_read_{node.get('node_type', '')}", _ignore)(node, node.get("params") or {})
        self._end_open_functions()
        self._finish_tensors()

    def _read_function_start(self, node: Node, params: Json) -> None:
        name = params.get("name", "unknown")
        records = self._records[name]
        hidden = name.startswith(HIDDEN) or (name == "ttnn.from_torch" and not self._computes)
        reported = not hidden and not any(function.reported for function in self._open)
        self._open.append(OpenFunction(node, name, reported, records.popleft() if records else {}))
        if reported:
            self._computes |= name != "ttnn.from_torch"
            self._inner = InnerCalls([node])
            operation = self.operation_ids[node.get("counter", 0)] = self._next_operation()
            self._add("nodes", operation, node.get("counter", 0), self._count, name)

    def _read_function_end(self, node: Node, params: Json) -> None:
        function = self._open.pop() if self._open else OpenFunction(node, params.get("name", "unknown"), True, {})
        aborted = (function.name, params.get("abort_reason", "")) if params.get("aborted") == "true" else None
        if not function.reported:
            self._inner.abort = self._inner.abort or aborted
            inputs = set(self._tensor_ids(function.node.get("input_tensors", ())))
            results = self._tensor_nodes(node.get("connections", ()))
            self._inner.inputs += inputs
            self._inner.used |= inputs
            self._inner.outputs += results
            self._inner.made |= {_tensor_id(result) for result in results} - inputs
            return
        operation = self.operation_ids.get(function.node.get("counter", 0)) or self._next_operation()
        self._add("operations", operation, params.get("name", "unknown"), node.get("duration_ns", 0) / 1e9)
        self._add_executions(operation)
        error = self._find_error(function, aborted or self._inner.abort)
        if error is not None:
            self._add("errors", operation, params.get("name", "unknown"), *error, function.stack, "")
        self._add_call(operation, function)
        outputs = self._add_outputs(operation, function, node)
        self._add_captured_graph(operation, function, [*self._inner.nodes, *outputs])
        live = self._live_buffers.get(str(function.node.get("counter", 0)))
        if live is None:
            self._add_live_buffers(operation)
        else:
            for buffer in live:
                self._add("buffers", operation, *(buffer.get(key, 0) for key in BufferRow._fields))

    def _read_tensor(self, node: Node, params: Json) -> None:
        if not params.get("tensor_id") or (number := _tensor_id(node)) in self._tensors:
            return
        row = self._tensors[number] = make_tensor_row(number, params, self._rank)
        if row.address is not None:
            self._tensor_at.setdefault(row.address, number)
        self.rows["device_tensors"] += make_device_tensor_rows(number, params, self._rank)

    def _read_buffer_allocate(self, node: Node, params: Json) -> None:
        self._buffers.append(make_buffer_row(params, self._devices))

    def _read_buffer_deallocate(self, node: Node, params: Json) -> None:
        """A buffer that no function frees gets a separate operation that frees it."""
        allocations = [n.get("params", {}) for n in self._connected(node.get("connections", ()), "buffer_allocate")]
        address = int(next((p["address"] for p in (params, *allocations) if "address" in p), -1))
        self._buffers = [buffer for buffer in self._buffers if buffer.address != address]
        tensor = self._tensor_at.get(address)
        if self._open:
            self._inner.inputs += [] if tensor is None else [tensor]
            return
        operation = self._next_operation()
        self._add("operations", operation, "ttnn::deallocate", 0)
        self._add("nodes", operation, node.get("counter", 0), self._count, "ttnn::deallocate")
        if tensor is not None:
            self._add("input_tensors", operation, 0, tensor)
        self._add_live_buffers(operation)
        self._add_subgraph(operation, _enclose([{**node, "counter": 1, "connections": [2]}]))

    def _read_error(self, node: Node, params: Json) -> None:
        """An error belongs to the operation around the innermost function of its name, if there is one."""
        name, error = (
            params.get("error_operation", ""),
            (params.get("error_type", "unknown"), params.get("error_message", "")),
        )
        innermost = max((i for i, function in enumerate(self._open) if name and function.name == name), default=-1)
        owner = next((function for function in reversed(self._open[: innermost + 1]) if function.reported), None)
        if owner is None:
            self._add("errors", self._base, name, *error, "", "")
        elif owner.error is None:
            owner.error = error

    def _end_open_functions(self) -> None:
        """Operations that never ended are in the database too, with an error."""
        for function in self._open:
            if not function.reported:
                continue
            operation = self.operation_ids[function.node.get("counter", 0)]
            self._add("operations", operation, function.name, 0)
            self._add_call(operation, function)
            nodes = [n for n in self._inner.nodes if n.get("node_type") not in ("capture_start", "capture_end")]
            self._add_captured_graph(operation, function, nodes)
            unknown = (
                "incomplete_operation",
                f"Operation '{function.name}' started but never completed (likely crashed)",
            )
            error = self._find_error(function, None) or unknown
            self._add("errors", operation, function.name, *error, function.stack, "")

    def _finish_tensors(self) -> None:
        """Host tensors that no operation names are left out; ids that only Python knows get the captured tensor's row."""
        named = {tensor for table in ("input_tensors", "output_tensors") for _, _, tensor, _ in self.rows[table]}
        kept = {
            number: row
            for number, row in self._tensors.items()
            if row.storage_type == "DEVICE" or row.device_id is not None or number in named
        }
        for number in sorted(named - set(kept)):
            if number in self._captured:
                kept[number] = make_tensor_row(number, self._captured[number].get("params", {}), self._rank)
        self.rows["tensors"] = list(kept.values())
        for table, by_tensor in (("input_tensors", "tensor_consumers"), ("output_tensors", "tensor_producers")):
            uses = number_uses(self.rows[table], kept)
            self.rows[table] = list(uses)
            self.rows[by_tensor] = [(tensor, operation, i, rank) for operation, i, tensor, rank in uses]
        self.rows["device_tensors"] = list(dict.fromkeys(row for row in self.rows["device_tensors"] if row[0] in kept))

    def _next_operation(self) -> int:
        self._count += 1
        return self._base + self._count

    def _add(self, table: str, *values: Any) -> None:
        self.rows[table].append((*values, self._rank))

    def _find_error(self, function: OpenFunction, aborted: tuple[str, str] | None) -> tuple[str, str] | None:
        """Kind and text: what Python saw, else what left the function, else what the capture recorded."""
        if error := function.record.get("error"):
            return error.get("type", "exception"), error.get("message", "")
        if aborted is not None:
            return "aborted_operation", aborted[1] or f"Operation '{aborted[0]}' was aborted by an exception"
        return function.error

    def _add_call(self, operation: int, function: OpenFunction) -> None:
        """Arguments, call stack and input tensors."""
        arguments: Json = function.record.get("arguments") or {
            f"arg_{i}": value for i, value in enumerate(function.node.get("arguments", ()))
        }
        for name, value in arguments.items():
            self._add("operation_arguments", operation, str(name), str(value))
        if function.stack:
            self._add("stack_traces", operation, function.stack)
        inputs = (
            [int(number) for number in function.record.get("input_tensor_ids") or ()]
            or self._tensor_ids(function.node.get("input_tensors", ()))
            or [number for number in self._inner.inputs if number not in self._inner.made]
        )
        for i, number in enumerate(inputs):
            self._add("input_tensors", operation, i, number)

    def _add_outputs(self, operation: int, function: OpenFunction, end: Node) -> list[Node]:
        """Output tensors; the captured nodes of those that the capture itself knows."""
        nodes = self._tensor_nodes(end.get("connections", ()))
        numbers = [int(number) for number in function.record.get("output_tensor_ids") or ()]
        if numbers:
            self._captured.update(zip(numbers, nodes or self._inner.outputs, strict=False))
            nodes = []
        else:
            if not nodes:
                passed_on = self._inner.made & self._inner.used
                inner = {_tensor_id(node): node for node in reversed(self._inner.outputs)}
                order = dict.fromkeys(map(_tensor_id, self._inner.outputs))
                nodes = [inner[number] for number in order if number not in passed_on]
            numbers = [_tensor_id(node) for node in nodes]
        for i, number in enumerate(numbers):
            self._add("output_tensors", operation, i, number)
        return nodes

    def _add_executions(self, operation: int) -> None:
        """Which devices ran the operation's programs, and the sub-devices that there were."""
        count = 0
        for node in self._inner.nodes:
            params = node.get("params") or {}
            if node.get("node_type") == "sub_device_manager":
                manager = (int(params["device_id"]), int(params["sub_device_manager_id"]))
                self._add("sub_device_managers", *manager)
                for sub_device in json.loads(params.get("sub_devices") or "[]"):
                    cores = json.dumps(sub_device.get("worker_core_ranges", []))
                    self._add("sub_devices", *manager, int(sub_device["sub_device_id"]), cores)
            elif node.get("node_type") == "program_execution":
                if count == EXECUTIONS_PER_OPERATION:
                    log.warning(
                        "operation %d has more than %d program executions; the rest is left out", operation, count
                    )
                    return
                self._add_execution(operation * EXECUTIONS_PER_OPERATION + count, operation, params)
                count += 1

    def _add_execution(self, execution: int, operation: int, params: Json) -> None:
        device = int(params["device_id"])
        ran = (int(params[key]) for key in ("runtime_id", "global_call_count", "command_queue_id"))
        physical = int(params.get("physical_device_id", device))
        self._add("operation_executions", execution, operation, device, physical, *ran)
        if params.get("sub_device_id") is not None:
            manager = int(params["sub_device_manager_id"])
            self._add("execution_sub_devices", execution, device, manager, int(params["sub_device_id"]))

    def _add_live_buffers(self, operation: int) -> None:
        for buffer in self._buffers:
            self._add("buffers", operation, *buffer)

    def _add_captured_graph(self, operation: int, function: OpenFunction, nodes: list[Node]) -> None:
        captured = function.record.get("captured_graph")
        self._add_subgraph(
            operation, [dict(node) for node in captured] if captured else build_operation_subgraph(nodes)
        )

    def _add_subgraph(self, operation: int, nodes: list[Node]) -> None:
        for node in nodes:
            if "counter" in node:
                node["id"] = node["counter"]
        self._add("captured_graph", operation, json.dumps(nodes))
        for node in nodes:
            for i, target in enumerate(node.get("connections", ())):
                self._add("edges", operation, node.get("counter", 0), target, i, 0, i)

    def _connected(self, counters: Iterable[int], kind: str) -> list[Node]:
        nodes = (self._graph[counter] for counter in counters if counter < len(self._graph))
        return [node for node in nodes if node.get("node_type") == kind]

    def _tensor_nodes(self, counters: Iterable[int]) -> list[Node]:
        return [n for n in self._connected(counters, "tensor") if n.get("params", {}).get("tensor_id")]

    def _tensor_ids(self, counters: Iterable[int]) -> list[int]:
        return [_tensor_id(node) for node in self._tensor_nodes(counters)]


def build_operation_subgraph(nodes: Iterable[Node]) -> list[Node]:
    """An operation's nodes as a separate graph: between a start and an end, numbered from 0."""
    graph = _enclose(nodes)
    numbers = {node.get("counter", 0): i for i, node in enumerate(graph[1:-1], 1)}
    for i, node in enumerate(graph):
        node["counter"] = i
        for key in ("connections", "input_tensors"):
            if key in node:
                node[key] = [numbers.get(counter, counter) for counter in node[key]]
    return graph


def _enclose(nodes: Iterable[Node]) -> list[Node]:
    """Copies of these nodes, as they are numbered, between a start and an end."""
    nodes = [dict(node) for node in nodes]
    empty = {"arguments": [], "input_tensors": [], "params": {}, "stacking_level": 0}
    first = {**empty, "counter": 0, "node_type": "capture_start", "connections": [1]}
    return [first, *nodes, {**empty, "counter": len(nodes) + 1, "node_type": "capture_end", "connections": []}]


def _ignore(node: Node, params: Json) -> None:
    """Nodes of other kinds have no rows."""


def _tensor_id(node: Node) -> int:
    return int(node["params"]["tensor_id"])
