"""What a capture knows of Python: each operation's arguments, the ids of its tensors and, if enabled, the call stack.

TT-NN keeps these as variables of its module `ttnn.graph`, and programs replace them there; `records_of_module` follows.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path, PurePath
from typing import Any

import torch

from ttmesh.base.atomic_files import write_file
from ttmesh.ops.graph.comparison_records import reset_comparison_records_data
from ttmesh.tensor.calls.launch_op import tensors_in
from ttmesh.tensor.tensor import Tensor

PythonRecord = dict[str, Any]
MODULE = "ttmesh.ttnn.graph"
HIDDEN = ("**/ttmesh/**", "**/_pytest/**", "**/pluggy/**", "**/bin/pytest")  # files whose frames are left out

_python_io_data: list[PythonRecord] = []


class _Switches:
    """What is recorded now; `traces_for_capture`: the outermost capture turned stacks on and turns them off again."""

    recording = False
    traces = False
    traces_for_capture = False


def records_of_module() -> list[PythonRecord]:
    """The list that records go to: the one that a program put in its place, if any."""
    module = sys.modules.get(MODULE)
    found = _python_io_data if module is None else vars(module).get("_python_io_data", _python_io_data)
    return found  # type: ignore[no-any-return]  # what the program put there


def enable_python_io_recording() -> None:
    """Record the arguments and tensors of every operation; captures do it by themselves."""
    _Switches.recording = True


def disable_python_io_recording() -> None:
    """Stop recording them."""
    _Switches.recording = False


def is_python_io_recording_enabled() -> bool:
    """Whether they are recorded."""
    return _Switches.recording


def enable_python_stack_traces() -> None:
    """Record the call stack of every operation as well."""
    _Switches.traces = True


def disable_python_stack_traces() -> None:
    """Record no call stacks."""
    _Switches.traces = False


def is_python_stack_trace_enabled() -> bool:
    """Whether call stacks are recorded."""
    return _Switches.traces


def _configure_python_stack_traces_for_outer_graph_capture(ttnn_module: Any) -> None:
    """Turn call stacks on for one capture where the module's CONFIG asks for them."""
    names = ("enable_graph_python_stack_traces", "enable_detailed_tensor_report")
    wanted = any(getattr(ttnn_module.CONFIG, name, False) for name in names)
    _Switches.traces_for_capture = wanted and not _Switches.traces
    _Switches.traces |= wanted


def begin_outermost_capture(ttnn_module: Any) -> None:
    """A capture begins and no other is open: earlier records go."""
    global _python_io_data
    reset_comparison_records_data()
    _python_io_data = []
    module = sys.modules.get(MODULE)
    if module is not None:
        vars(module)["_python_io_data"] = _python_io_data
    _Switches.recording = True
    _configure_python_stack_traces_for_outer_graph_capture(ttnn_module)


def end_outermost_capture() -> None:
    """The last open capture ended."""
    _Switches.recording = False
    if _Switches.traces_for_capture:
        _Switches.traces = _Switches.traces_for_capture = False


def append_python_io_record(name: str) -> PythonRecord:
    """Start the record of a call; records and calls of one name are matched in order."""
    record: PythonRecord = {"name": name, "arguments": {}, "input_tensor_ids": []}
    records_of_module().append(record)
    return record


def record_python_operation(
    name: str,
    function_args: tuple[Any, ...],
    function_kwargs: dict[str, Any],
    *,
    record: PythonRecord | None = None,
) -> PythonRecord:
    """Record a call, in the record given or a new one: its arguments as text, its tensors by id."""
    record = append_python_io_record(name) if record is None else record
    arguments = {**function_kwargs, **{str(i): value for i, value in enumerate(function_args)}}
    record["arguments"] = {key: _safe_arg_str(value) for key, value in arguments.items()}
    record["input_tensor_ids"] = list_tensor_ids({**dict(enumerate(function_args)), **function_kwargs})
    if _Switches.traces:
        record["python_stack_trace"] = _describe_stack()
    return record


def record_python_operation_error(record: PythonRecord | None, error_type: str, error_message: str) -> None:
    """Note the error that ended a call, unless one is noted."""
    if record is not None:
        record.setdefault("error", {"type": error_type, "message": error_message})


def store_output_tensor_ids(output_tensor_ids: list[int]) -> None:
    """Add the ids of its results to the last call."""
    if records := records_of_module():
        records[-1]["output_tensor_ids"] = output_tensor_ids


def store_captured_graph(captured_graph_json: Any) -> None:
    """Add the graph that a call captured to the last call."""
    if records := records_of_module():
        records[-1]["captured_graph"] = captured_graph_json


def write_sidecar(report_path: str | Path) -> None:
    """Write the records beside a report, for ttnn.graph_report."""
    if records := records_of_module():
        write_file(Path(report_path).with_suffix(".python_io.json"), json.dumps(records))


def list_tensor_ids(values: dict[Any, Any]) -> list[int]:
    """The ids of the tensors among these values, also in lists."""
    return [int(tensor.tensor_id) for tensor in tensors_in(values)]


def _safe_arg_str(value: Any) -> str:
    """An argument as text, without reading a tensor's values."""
    if isinstance(value, Tensor):
        return _describe_tensor(value)
    if isinstance(value, torch.Tensor):
        return f"torch.Tensor(shape={list(value.shape)}, dtype={value.dtype})"
    return str(value)


def _describe_tensor(tensor: Tensor) -> str:
    facts: dict[str, Any] = {
        "shape": tensor.shape,
        "dtype": tensor.dtype,
        "layout": tensor.layout,
        "memory_config": tensor.memory_config(),
        "storage_type": tensor.storage_type(),
        "tensor_id": tensor.tensor_id,
        "is_allocated": tensor.is_allocated(),
    }
    mesh = tensor.device() if tensor.is_allocated() else None
    if mesh is not None:
        facts |= {"device_id": mesh.id(), "mesh_shape": mesh.shape}
        topology = tensor.tensor_topology()
        facts |= {"distribution_shape": topology.distribution_shape(), "placements": topology.placements()}
    return f"ttnn.Tensor({', '.join(f'{key}={value}' for key, value in facts.items())})"


def _describe_stack() -> list[str]:
    """The program's frames, innermost first."""
    frames = [
        frame
        for frame in traceback.extract_stack()
        if not any(PurePath(frame.filename).match(pattern) for pattern in HIDDEN) and "/ttmesh/" not in frame.filename
    ]
    return [f'  File "{f.filename}", line {f.lineno}, in {f.name}\n    {f.line}\n' for f in reversed(frames)]
