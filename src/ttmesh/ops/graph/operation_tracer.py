"""ttnn.operation_tracer: the arguments and results of every operation, one JSON file per call."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import torch

from ttmesh.base.ttnn_config import CONFIG
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.ops.catalogue.definition import OpFunction
from ttmesh.tensor.calls.gate import Gate
from ttmesh.tensor.observer import Watcher, observer
from ttmesh.tensor.spec.memory_config import MemoryConfig
from ttmesh.tensor.tensor import Tensor


class OperationTracer(Watcher):
    """What the module's functions and flags act on; the flags have TT-NN's names, programs assign them."""

    def __init__(self) -> None:
        self._OPERATION_COUNTER = 0
        self._SERIALIZE_TENSOR_VALUES = False
        self._SWEEP_SOURCE_HASH: str | None = None
        self._enabled = False
        self._writing = False

    @property
    def _ENABLE_TRACE(self) -> bool:
        return self._enabled

    @_ENABLE_TRACE.setter
    def _ENABLE_TRACE(self, enable: bool) -> None:
        if bool(enable) != self._enabled:
            (observer.add if enable else observer.remove)(self)
            self._enabled = bool(enable)

    def enable_tracing(self, enable: bool = True) -> None:
        """Write a file for every operation from now on, or stop; fast runtime mode writes none."""
        self._ENABLE_TRACE = enable

    def is_tracing_enabled(self) -> bool:
        """Whether files are written."""
        return self._enabled

    def enable_tensor_value_serialization(self, enable: bool = True) -> None:
        """Write the values of tensors too."""
        self._SERIALIZE_TENSOR_VALUES = enable

    def set_sweep_source_hash(self, hash_value: str | None = None) -> None:
        """Write this under `sweep_source_hash` into every file."""
        self._SWEEP_SOURCE_HASH = hash_value

    def after_operation(self, operation: Gate, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write an operation."""
        assert isinstance(operation, OpFunction), "watchers of calls see operations only"
        self._trace(operation.python_fully_qualified_name, args, kwargs, result)

    def after_transfer(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Write a transfer."""
        self._trace(name, args, kwargs, result)

    def _trace(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        if not CONFIG.enable_fast_runtime_mode:
            folder = os.environ.get("TTNN_OPERATION_TRACE_DIR")
            log_dir = Path(folder) if folder else Path(CONFIG.root_report_path) / "operation_parameters"
            self.serialize_operation_parameters(
                name, args, kwargs, log_dir, result, serialize_tensor_values=self._SERIALIZE_TENSOR_VALUES
            )

    def serialize_operation_parameters(
        self,
        operation_name: str,
        function_args: Sequence[Any],
        function_kwargs: Mapping[str, Any],
        log_dir: Path,
        return_value: Any = None,
        serialize_tensor_values: bool = True,
    ) -> None:
        """Write one call as NUMBER_NAME_TIME.json into a folder."""
        if self._writing:  # reading the values of a tensor calls operations
            return
        self._writing = True
        try:
            self._OPERATION_COUNTER += 1
            record = {
                "operation_id": self._OPERATION_COUNTER,
                "operation_name": operation_name,
                "args": [
                    {"position": i, "value": describe(value, serialize_tensor_values)}
                    for i, value in enumerate(function_args)
                ],
                "kwargs": {key: describe(value, serialize_tensor_values) for key, value in function_kwargs.items()},
            }
            if self._SWEEP_SOURCE_HASH:
                record["sweep_source_hash"] = self._SWEEP_SOURCE_HASH
            if return_value is not None:
                record["return_value"] = describe(return_value, serialize_tensor_values)
            time = datetime.now().strftime("%Y%m%d_%H%M%S_%f")
            name = operation_name.replace("::", "_").replace(".", "_")
            log_dir.mkdir(parents=True, exist_ok=True)
            (log_dir / f"{self._OPERATION_COUNTER}_{name}_{time}.json").write_text(json.dumps(record, indent=2))
        finally:
            self._writing = False


def describe(value: Any, with_values: bool) -> Any:
    """A value as JSON: tensors by their specs, and their values if wanted."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return _describe_tensor(value, with_values)
    if isinstance(value, torch.Tensor):
        return {"type": "torch.Tensor", **_describe_values(value, with_values)}
    if isinstance(value, list | tuple):
        return [describe(item, with_values) for item in value]
    if isinstance(value, dict):
        return {str(key): describe(item, with_values) for key, item in value.items()}
    if isinstance(value, MeshDevice):
        ids = {"shape": list(value.shape), "device_ids": list(value.get_device_ids())}
        return {"type": "MeshDevice", "repr": str(value), **ids}
    if isinstance(value, MemoryConfig):
        return _describe_memory(value)
    name = type(value).__name__
    if name.startswith("Matmul") and hasattr(value, "to_json"):
        return {**json.loads(value.to_json()), "type": name}
    return {"type": name, "repr" if hasattr(value, "__dict__") else "value": str(value)}


def _describe_values(values: torch.Tensor, with_values: bool) -> dict[str, Any]:
    """Shape and dtype; with values those of the numpy array that holds them."""
    if not with_values:
        return {"shape": list(values.shape), "dtype": str(values.dtype)}
    array = (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()
    return {"shape": list(array.shape), "dtype": str(array.dtype), "values": array.tolist()}


def _describe_memory(config: MemoryConfig) -> dict[str, Any]:
    return {
        "memory_layout": str(config.memory_layout),
        "buffer_type": str(config.buffer_type),
        "shard_spec": str(config.shard_spec),
        "is_sharded": config.is_sharded(),
        "interleaved": config.interleaved,
        "hash": hash(config),
    }


def _describe_tensor(tensor: Tensor, with_values: bool) -> dict[str, Any]:
    topology, mesh = tensor.tensor_topology(), tensor.device()
    places: dict[str, Any] = {
        "placements": [repr(placement).removesuffix("()") for placement in topology.placements()],
        "distribution_shape": list(topology.distribution_shape()),
    }
    if mesh is not None:
        places |= {"shape": list(mesh.shape), "device_ids": list(mesh.get_device_ids())}
    found: dict[str, Any] = {
        "type": "ttnn.Tensor",
        "original_shape": list(tensor.shape),
        "original_dtype": str(tensor.dtype),
        "mesh_device": places,
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype),
        "layout": str(tensor.layout),
        "storage_type": str(tensor.storage_type()),
        "memory_config": _describe_memory(tensor.memory_config()),
    }
    return {**found, **_describe_values(tensor.to_torch(), True)} if with_values else found


tracer = OperationTracer()
