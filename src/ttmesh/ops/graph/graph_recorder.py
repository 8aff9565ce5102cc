"""The recorder of a graph capture: it watches calls and listens to memory records, and makes TT-NN's nodes of them."""

from __future__ import annotations

import json
import time
from enum import Enum
from typing import Any

from ttmesh.base.dtypes import BufferType, DataType, Layout
from ttmesh.base.records import Allocated, Freed, Record
from ttmesh.base.signals import signals
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice, list_open_meshes
from ttmesh.mesh.queue.command_queue import Body, dispatch
from ttmesh.ops.catalogue.definition import OpFunction
from ttmesh.ops.graph import graph_report, python_io
from ttmesh.ops.graph.device_operations import (
    WITH_CIRCULAR_BUFFERS,
    name_device_operations,
    print_arguments,
    print_tensor,
)
from ttmesh.ops.graph.graph_queries import Node
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.calls.launch_op import tensors_in
from ttmesh.tensor.calls.plan import Plan
from ttmesh.tensor.observer import LaunchedProgram, Step, Watcher, observer
from ttmesh.tensor.spec.memory_config import cpp
from ttmesh.tensor.tensor import Tensor

CREATE, UPLOAD, DOWNLOAD = "tt::tt_metal::create_device_tensor", "Tensor::to_device", "Tensor::cpu"
FREE, RESHAPE = "Tensor::deallocate", "Tensor::reshape"
FROM_TORCH = "ttnn::convert_python_tensor_to_tt_tensor"
TO_TORCH = "tt::tt_metal::detail::convert_tt_tensor_to_framework_tensor"


class RunMode(Enum):
    """Whether captured programs and writes reach the chips."""

    NORMAL = 0
    NO_DISPATCH = 1


class GraphRecorder(Watcher):
    """The nodes of one capture and the stack of open functions; the innermost is `stack[-1]`."""

    def __init__(self, run_mode: RunMode) -> None:
        self.nodes: list[Node] = []
        self.started_ns = time.time_ns()
        self._starts: list[int] = []  # clock readings, one per open function
        self._buffers: dict[int, int] = {}  # buffer id -> its node
        self._created: dict[
            int, tuple[int, int, int]
        ] = {}  # buffer id -> start, allocation, end of the function that made it
        self._records: dict[int, Allocated] = {}
        self._python_records: list[python_io.PythonRecord] = []  # of the operations that did not return yet
        self._shards: dict[int, dict[str, Any]] = {}  # node of a sharded buffer -> its layout and number of cores
        self._inputs: list[list[Tensor]] = []  # of those operations, until a device operation takes them
        self._programs = _count_programs()  # in the program caches, when the last operation began
        self.devices: dict[int, dict[str, Any]] = {}  # the meshes that the capture saw, by id
        self.buffers_by_operation: dict[int, list[dict[str, Any]]] = {}  # by the counter of its start
        self.pages_by_address: dict[int, list[dict[str, Any]]] = {}
        self._operations: list[int] = []  # starts of the operations that did not return yet
        self._launched: list[tuple[Plan, int]] = []  # whose device operations have not ended, with their starts
        self._add("capture_start", {})
        self.stack = [0]
        self._clock = time.perf_counter_ns()
        self._dispatched = dispatch.enabled
        if run_mode is RunMode.NO_DISPATCH:
            dispatch.enabled = False
        for mesh in list_open_meshes():
            for cell in (cell for cells in mesh.heap.live.values() for cell in cells.values()):
                self._records[cell.buffer_id] = _record_of(mesh, cell)
        # Asking for commands keeps programs from running without one.
        self._stop_listening = signals.listen(self._handle_record, commands=not dispatch.enabled)
        observer.add(self)

    def stop(self) -> list[Node]:
        """Stop recording and return the graph."""
        self._stop_listening()
        dispatch.enabled = self._dispatched
        observer.remove(self)
        while len(self.stack) > 1:  # an operation that raised never ended
            self.function_end()
        duration = time.perf_counter_ns() - self._clock
        self.nodes[0]["connections"].append(self._add("capture_end", {}, duration_ns=max(duration, 1)))
        return self.nodes

    def function_start(self, name: str, arguments: list[str]) -> int:
        """Start a function inside the current one."""
        node = self._add("function_start", {"name": name, "inputs": str(len(arguments))}, level=len(self.stack))
        self.nodes[node]["arguments"] = arguments
        self.nodes[self.stack[-1]]["connections"].append(node)
        self.stack.append(node)
        self._starts.append(time.perf_counter_ns())
        return node

    def function_end(self) -> int:
        """End the current function."""
        start = self.stack.pop()
        duration = time.perf_counter_ns() - self._starts.pop()
        end = self._add(
            "function_end",
            {"name": self.nodes[start]["params"]["name"]},
            level=len(self.stack),
            duration_ns=max(duration, 1),
        )
        self.nodes[start]["connections"].append(end)
        if len(self.stack) == 1 and graph_report.is_detailed_buffer_tracing_enabled():
            live = [buffer for mesh in self.meshes() for buffer in graph_report.list_live_buffers(mesh)]
            self.buffers_by_operation[start] = live
        return end

    def meshes(self) -> list[MeshDevice]:
        """The meshes that the capture saw and that are open."""
        return [mesh for mesh in list_open_meshes() if mesh.id() in self.devices]

    def _note_mesh(self, mesh: MeshDevice) -> None:
        if mesh.id() not in self.devices:
            self.devices[mesh.id()] = graph_report.describe_device(mesh)

    def _add(self, kind: str, params: dict[str, Any], *, level: int | None = None, duration_ns: int = 0) -> int:
        counter = len(self.nodes)
        node: Node = {
            "counter": counter,
            "node_type": kind,
            "params": params,
            "arguments": [],
            "connections": [],
            "input_tensors": [],
            "stacking_level": len(self.stack) - 1 if level is None and self.nodes else level or 0,
        }
        if duration_ns:
            node["duration_ns"] = duration_ns
        self.nodes.append(node)
        return counter

    def before_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start the operation's function."""
        assert isinstance(operation, OpFunction), "watchers of calls see operations only"
        self.start_call(operation.python_fully_qualified_name, args, kwargs)

    def start_call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start the function of a call, with what Python passed and its tensors."""
        arguments: dict[str, Any] = {**{str(i): value for i, value in enumerate(args)}, **kwargs}
        if self._records_python():
            self._python_records.append(python_io.record_python_operation(name, args, kwargs))
        self._programs = _count_programs()
        self._inputs.append(list(tensors_in(arguments)))
        for tensor in self._inputs[-1]:
            self._complete(tensor)
        self._operations.append(self.function_start(name, []))

    def _add_inputs(self, start: int) -> None:
        """Add the tensors of the call, as inputs of the first function inside it."""
        tensors = self._inputs[-1] if self._inputs else []
        for tensor in tensors:
            node = self._tensor(tensor)
            self.nodes[node]["connections"].append(start)
            self.nodes[start]["input_tensors"].append(node)
        tensors.clear()

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """End it, with its results."""
        self.end_call(result)

    def end_call(self, result: Any) -> None:
        """End the function of the innermost call, with its results."""
        tensors = tensors_in({"result": result})
        if self._python_records:
            self._python_records.pop()["output_tensor_ids"] = [int(tensor.tensor_id) for tensor in tensors]
        for tensor in tensors:
            self._complete(tensor)
        self._operations.pop()
        inputs, start = self._inputs[-1], self.stack[-1]
        if inputs and all(node["node_type"] != "function_start" for node in self.nodes[start + 1 :]):
            if any(_share_memory(one, tensor) for one in inputs for tensor in tensors):
                self._call(RESHAPE, [print_tensor(inputs[0].spec), *[str(tensors[0].shape)] * 2])
            else:  # the names of its device operations are not known
                self._add_inputs(start)
        self._inputs.pop()
        end = self.function_end()
        self.nodes[end]["connections"] += [self._tensor(tensor) for tensor in tensors]

    def after_failure(self, operation: Gate, error: BaseException) -> None:
        """End an operation that failed."""
        self.abort_call(error)

    def abort_call(self, error: BaseException) -> None:
        """End the function of a call that failed and those inside it, and note why."""
        if self._python_records:
            python_io.record_python_operation_error(self._python_records.pop(), type(error).__name__, str(error))
        operation_start = self._operations.pop()
        while self.stack[-1] > operation_start:
            self.nodes[self.function_end()]["params"]["aborted"] = "true"
        self._launched = [(plan, start) for plan, start in self._launched if start < operation_start]
        if all(node["node_type"] != "function_start" for node in self.nodes[operation_start + 1 :]):
            self._add_inputs(operation_start)
        self._inputs.pop()
        self.function_end()

    def before_transfer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Start the function, and in it what brings values to the host."""
        self._programs = _count_programs()
        self._inputs.append(list(tensors_in({str(i): value for i, value in enumerate(args)} | kwargs)))
        self.function_start(name, [])
        tensor = self._inputs[-1][0] if self._inputs[-1] else None
        on_device = tensor is not None and tensor.device() is not None and tensor.is_allocated()
        match name:
            case "ttnn.from_torch":
                given = [kwargs.get("dtype"), kwargs.get("layout"), kwargs.get("memory_config")]
                dtype, layout, memory = ("<optional>" if value is None else _print_option(value) for value in given)
                self.function_start(
                    FROM_TORCH, [dtype, layout, "<optional>", memory, "<optional>", "<optional>", "0", "<optional>"]
                )
            case "ttnn.to_torch" if on_device and tensor is not None:
                self.function_start("ttnn.from_device", [])
                self._call(DOWNLOAD, [print_tensor(tensor.spec), "1"])
                self.function_end()
            case "ttnn.from_device" if on_device and tensor is not None:
                self._call(DOWNLOAD, [print_tensor(tensor.spec), "1"])

    def end_transfer(self, name: str, result: Any) -> None:
        """End the function."""
        self._inputs.pop()
        for tensor in tensors_in({"result": result}):
            self._complete(tensor)
        if name == "ttnn.to_torch":
            self._call(TO_TORCH, ["RowMajorHostBuffer"])
        while self.nodes[self.stack[-1]]["params"]["name"] != name:
            self.function_end()
        self.function_end()

    def _call(self, name: str, arguments: list[str]) -> None:
        """Add a function that allocates nothing."""
        self._add_inputs(self.function_start(name, arguments))
        self.function_end()

    def _records_python(self) -> bool:
        """The innermost capture records what Python passed."""
        return python_io.is_python_io_recording_enabled() and bool(active_captures) and active_captures[-1] is self

    def wrap_body(self, plan: Plan, launch: LaunchedProgram, body: Body) -> Body:
        """Start the last of a call's device operations, which allocates; those before it are empty."""
        names = name_device_operations(plan, launch)
        if len(self.stack) > 1 and names:
            for i, name in enumerate(names):
                if i:
                    self.function_end()
                self._add_inputs(self.function_start(name, print_arguments(name, plan, launch)))
            self._launched.append((plan, self.stack[-1]))
        return body

    def after_run(self, step: Step) -> None:
        """End the device operation, with what its program takes of L1."""
        name = self.nodes[self.stack[-1]]["params"].get("name", "")
        mesh = next((tensor.device() for tensor in tensors_in({"result": step.result})), None)
        if mesh is not None and step.plan.program_count:
            self._add_program(mesh, name, step.plan.circular_buffer_bytes)
        if self._launched and self._launched[-1][0] is step.plan:
            self._launched.pop()
            self.function_end()

    def _add_program(self, mesh: MeshDevice, name: str, buffer_bytes: int) -> None:
        """Add a program's circular buffers, all as one; TT-NN tells of them where it builds the program."""
        device, grid = {"device_id": mesh.id()}, mesh.compute_with_storage_grid_size()
        inside = self.nodes[self.stack[-1]]["connections"]
        inside.append(self._add("circular_buffer_deallocate_all", device))
        is_new = _count_programs() > self._programs
        cores = f"{{[0-0 - {grid.x - 1}-{grid.y - 1}]}}"
        if buffer_bytes and is_new and name in WITH_CIRCULAR_BUFFERS:
            address = mesh.heap.map.banks[BufferType.L1].start if dispatch.enabled else 0
            facts = {"size": buffer_bytes, "address": address, "core_range_set": cores, "globally_allocated": "0"}
            for chip in mesh.get_device_ids():  # told of every chip, although they are the same
                self._add("circular_buffer_allocate", {**facts, "device_id": chip})
        elif buffer_bytes and not dispatch.enabled:
            facts = {"size": buffer_bytes, "address": 0, "core_range_set": cores, "borrows_memory": "0"}
            self._add("dataflow_buffer_allocate", {**facts, **device})

    def _handle_record(self, record: Record) -> None:
        if isinstance(record, Allocated):
            start = self.function_start(UPLOAD if record.label == "to_device" else CREATE, [])
            if record.label == "to_device":
                self._add_inputs(start)
            self._records[record.buffer_id] = record
            buffer = self._buffer(record)
            node = self._add("buffer_allocate", _describe_allocation(record))
            self.nodes[node]["connections"].append(buffer)
            self.nodes[start]["connections"].append(node)
            self._note_address(record, node)
            self._created[record.buffer_id] = start, node, self.function_end()
        elif isinstance(record, Freed) and record.buffer_id in self._records:
            allocated = self._records.pop(record.buffer_id)
            asked = len(self.stack) == 1 or self.nodes[self.stack[-1]]["params"]["name"] == "ttnn.deallocate"
            start = self.function_start(FREE, []) if asked else self.stack[-1]
            buffer = self._buffer(allocated)
            node = self._add("buffer_deallocate", {**_describe_allocation(allocated), **self._shards.get(buffer, {})})
            self.nodes[node]["connections"].append(buffer)
            self.nodes[start]["connections"].append(node)
            if asked:
                self.function_end()

    def _note_address(self, record: Allocated, node: int) -> None:
        """Record the mesh and, if enabled, the pages, because the address may be reused later."""
        for mesh in list_open_meshes():
            if mesh.id() == record.mesh_id:
                self._note_mesh(mesh)
                if graph_report.is_detailed_buffer_tracing_enabled():
                    pages = {"alloc_counter": node, "pages": graph_report.list_buffer_pages(mesh, record.address)}
                    self.pages_by_address.setdefault(record.address, []).append(pages)

    def after_upload(self, tensor: Tensor) -> None:
        """Add a tensor created by a transfer; tensors of operations are added when the operation returns."""
        self._complete(tensor)

    def _buffer(self, record: Allocated) -> int:
        if record.buffer_id not in self._buffers:
            facts = {
                key: _describe_allocation(record)[key] for key in ("size", "type", "buffer_type", "layout", "device_id")
            }
            self._buffers[record.buffer_id] = self._add("buffer", facts)
            self.nodes[self.stack[-1]]["connections"].append(self._buffers[record.buffer_id])
        return self._buffers[record.buffer_id]

    def _complete(self, tensor: Tensor) -> None:
        """Add the arguments that created a tensor; they are known when the operation returns."""
        if not tensor.is_allocated() or tensor.device() is None:
            return
        created = self._created.pop(tensor.buffer.cell.buffer_id, None)
        if created is None:
            return
        start, allocation, end = (self.nodes[i] for i in created)
        values = (tensor.shape, cpp(tensor.dtype), cpp(tensor.layout), tensor.device(), tensor.memory_config())
        is_upload = start["params"]["name"] == UPLOAD
        start["arguments"] = (
            [print_tensor(tensor.spec), str(tensor.device()), "1"] if is_upload else list(map(str, values))
        )
        start["params"]["inputs"] = str(len(start["arguments"]))
        config, cell = tensor.memory_config(), tensor.buffer.cell
        if config.is_sharded():
            buffer = self._buffers[cell.buffer_id]
            self._shards[buffer] = {"layout": config.memory_layout.name, "num_cores": cell.banks}
            allocation["params"] |= self._shards[buffer]
            self.nodes[buffer]["params"]["layout"] = config.memory_layout.name
        end["connections"].append(self._tensor(tensor))

    def _tensor(self, tensor: Tensor) -> int:
        params: dict[str, Any] = {
            "tensor_id": tensor.tensor_id,
            "shape": str(tensor.shape),
            "dtype": cpp(tensor.dtype),
            "layout": cpp(tensor.layout),
            "size": tensor.shape.volume() * tensor.element_size(),
            "storage_type": "HOST" if tensor.device() is None else "DEVICE",
        }
        mesh = tensor.device() if tensor.is_allocated() else None
        if mesh is None:
            return self._add("tensor", params)
        self._note_mesh(mesh)
        cell = tensor.buffer.cell
        params["memory_config"] = str(tensor.memory_config())
        params |= {"device_id": mesh.id(), "address": cell.address, "buffer_type": cell.buffer_type.value}
        chips = [{"device_id": i, "mesh_device_id": mesh.id(), "address": cell.address} for i in mesh.get_device_ids()]
        params["device_tensors"] = json.dumps(chips)
        node = self._add("tensor", params)
        if cell.buffer_id in self._buffers:
            buffer = self._buffers[cell.buffer_id]
        else:  # it was allocated before the capture
            buffer = self._buffer(_record_of(mesh, cell))
            if tensor.memory_config().is_sharded():
                layout = tensor.memory_config().memory_layout.name
                self._shards[buffer] = {"layout": layout, "num_cores": cell.banks}
                self.nodes[buffer]["params"]["layout"] = layout
        self.nodes[buffer]["connections"].append(node)
        return node


def _describe_allocation(record: Allocated) -> dict[str, Any]:
    return {
        "size": record.size_bytes,
        "address": record.address,
        "type": "L1" if record.buffer_type.startswith("L1") else "DRAM",
        "buffer_type": BufferType[record.buffer_type].value,
        "layout": "INTERLEAVED",
        "page_size": record.page_bytes,
        "num_cores": 0,
        "device_id": record.mesh_id,
        "max_size_per_bank": record.bank_bytes,
    }


def _record_of(mesh: MeshDevice, cell: Cell) -> Allocated:
    """The record of a buffer that was allocated before the capture."""
    facts = cell.buffer_type.name, cell.address, cell.size_bytes, cell.bank_bytes, cell.banks, cell.page_bytes
    return Allocated(mesh.id(), cell.buffer_id, (), *facts, cell.label, 0)


def _count_programs() -> int:
    return sum(mesh.num_program_cache_entries() for mesh in list_open_meshes())


def _share_memory(one: Tensor, other: Tensor) -> bool:
    both_on_device = one.device() is not None and other.device() is not None
    return both_on_device and one.is_allocated() and other.is_allocated() and one.buffer.cell is other.buffer.cell


def _print_option(value: object) -> str:
    return cpp(value) if isinstance(value, (DataType, Layout)) else str(value)


active_captures: list[GraphRecorder] = []  # the innermost is the last
