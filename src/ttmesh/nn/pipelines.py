"""Pipelines: run a model on host tensors, with or without a trace, with transfers on the model's queue or a second one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ttmesh.base.cores import CoreCoord, CoreRange, CoreRangeSet
from ttmesh.base.dtypes import BufferType, ShardOrientation, StorageType, TensorMemoryLayout
from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.functions.queue_functions import record_event, synchronize_device, wait_for_event
from ttmesh.mesh.functions.trace_capture import begin_trace_capture, end_trace_capture, execute_trace, release_trace
from ttmesh.mesh.queue.events import MeshEvent
from ttmesh.mesh.queue.trace import MeshTraceId
from ttmesh.tensor.calls.conversions import to_memory_config
from ttmesh.tensor.spec.memory_config import MemoryConfig, ShardSpec
from ttmesh.tensor.tensor import Tensor
from ttmesh.tensor.transfer.transfers import (
    allocate_tensor_on_device,
    copy_device_to_host_tensor,
    copy_host_to_device_tensor,
    to_device,
)

COMPUTE, TRANSFER = 0, 1
Model = Callable[[Tensor], Any]


@dataclass
class PipelineConfig:
    """How a pipeline runs: traced or not, with one or two queues, and whether results are read on the second queue too."""

    use_trace: bool = True
    num_command_queues: int = 1
    all_transfers_on_separate_command_queue: bool = False


class Pipeline:
    """Feeds host tensors through a model: compile once, enqueue batches, pop the results."""

    def __init__(
        self,
        config: PipelineConfig,
        model: Model,
        device: MeshDevice,
        input_memory_config: MemoryConfig,
        staging_memory_config: MemoryConfig | None,
        output_memory_config: MemoryConfig | None,
    ) -> None:
        self.config, self.model, self.device = config, model, device
        self._input_config, self._staging_config, self._output_config = (
            input_memory_config,
            staging_memory_config,
            output_memory_config,
        )
        self._write_queue = TRANSFER if config.num_command_queues == 2 else COMPUTE
        self._read_queue = TRANSFER if config.all_transfers_on_separate_command_queue else COMPUTE
        self._staging: Tensor | None = None  # inputs are copied here
        self._input: Tensor | None = None  # the trace reads them here
        self._trace: MeshTraceId | None = None
        self._traced_output: Any = None
        self._outgoing: Any = None  # results are read from here while the model goes on
        self._written: MeshEvent | None = None  # an input has been copied to the device
        self._moved: MeshEvent | None = None  # the staging tensor may be overwritten
        self._read: MeshEvent | None = None  # a result has been read
        self._schema: Any = None
        self._slots: list[Any] | None = None
        self._results: list[Any] = []

    def compile(self, host_input: Tensor) -> Pipeline:
        """Run the model once, and with a trace capture it; every later input must have the same spec."""
        if self._staging_config is not None:
            self._staging = self._allocate(host_input, self._staging_config)
            copy_host_to_device_tensor(host_input, self._staging, cq_id=COMPUTE)
        output = self.model(self._fresh_input(host_input))
        self._schema = _map_tensors(output, lambda tensor: tensor.spec)
        config = self._output_config
        if config is not None:
            self._outgoing = _map_tensors(output, lambda tensor: self._allocate(tensor, config))
        _map_tensors(output, lambda tensor: tensor.deallocate())
        synchronize_device(self.device)
        if self.config.use_trace:
            self._capture(host_input)
        return self

    def preallocate_output_tensors_on_host(self, number_of_tensors_to_allocate: int) -> Pipeline:
        """Host tensors that results are read into, so that reading allocates no memory."""
        if self._schema is None:
            raise MeshError(
                "Pipeline must be compiled before pre-allocating output tensors.",
                expected="a compiled pipeline",
                fix="Call compile(host_input) first.",
            )
        self._slots = [None] * number_of_tensors_to_allocate
        return self

    def enqueue(self, host_inputs: Sequence[Tensor]) -> Pipeline:
        """Run the model on each input; with two queues the next input is copied while the model works on the one before."""
        self._check(host_inputs)
        self._results = []
        if self._write_queue != COMPUTE:
            self._moved = record_event(self.device, COMPUTE)
        if self._read_queue != COMPUTE:
            self._read = record_event(self.device, self._read_queue)
        for i, host_input in enumerate(host_inputs):
            if i == 0:
                self._send(host_input)
            output = self._step(host_input)
            if i + 1 < len(host_inputs):
                self._send(host_inputs[i + 1])  # before this result is read: transfers are in order
            self._results.append(self._read_result(output, i))
        return self

    def pop_all(self) -> list[Any]:
        """The results of the last enqueue, on the host."""
        synchronize_device(self.device)
        return self._results

    def cleanup(self) -> None:
        """Release the trace and free the persistent tensors."""
        synchronize_device(self.device)
        if self._trace is not None:
            release_trace(self.device, self._trace)
            self._trace = None
        for held in (self._staging, self._input, self._traced_output, self._outgoing):
            _map_tensors(held, lambda tensor: tensor.deallocate())
        self._staging = self._input = self._traced_output = self._outgoing = None

    def _allocate(self, like: Tensor, config: MemoryConfig) -> Tensor:
        return allocate_tensor_on_device(like.spec.with_memory_config(config), self.device)

    def _fresh_input(self, host_input: Tensor) -> Tensor:
        """The staged input, or a copy of the host tensor, in a device tensor that the model may free."""
        if self._staging is None:
            return to_device(host_input, self.device, self._input_config)
        target = self._allocate(self._staging, self._input_config)
        staged: Tensor = to_memory_config(self._staging, self._input_config, output_tensor=target)
        return staged

    def _capture(self, host_input: Tensor) -> None:
        """Capture the model only: before each replay the input is moved from staging to where the trace reads it."""
        given = self._fresh_input(host_input)
        address = given.buffer_address()
        self._trace = begin_trace_capture(self.device, cq_id=COMPUTE)
        self._traced_output = self.model(given)
        self._input = given if given.is_allocated() else self._allocate(host_input, self._input_config)
        end_trace_capture(self.device, self._trace, cq_id=COMPUTE)
        found = self._input.buffer_address()
        if found != address:
            raise MeshError(
                f"L1 input tensor address mismatch: trace captured {address}, but persistent tensor allocated at {found}",
                expected="a model that allocates no lasting tensor at the address of its input",
                fix="In the model, free the input last or not at all.",
            )

    def _send(self, host_input: Tensor) -> None:
        """Copy an input to the device, once the staging tensor is free."""
        if self._staging is None:
            return
        if self._moved is not None:
            wait_for_event(self._write_queue, self._moved)
        copy_host_to_device_tensor(host_input, self._staging, cq_id=self._write_queue)
        if self._write_queue != COMPUTE:
            self._written = record_event(self.device, self._write_queue)

    def _step(self, host_input: Tensor) -> Any:
        if self._written is not None:
            wait_for_event(COMPUTE, self._written)
        if self._input is None:
            given = self._fresh_input(host_input)
        else:
            assert self._staging is not None, "traced pipelines are staged"
            given = to_memory_config(self._staging, self._input_config, output_tensor=self._input)
        if self._write_queue != COMPUTE:
            self._moved = record_event(self.device, COMPUTE)
        if self._trace is None:
            return self.model(given)
        execute_trace(self.device, self._trace, cq_id=COMPUTE, blocking=False)
        return self._traced_output

    def _read_result(self, output: Any, index: int) -> Any:
        if self._read is not None:
            wait_for_event(COMPUTE, self._read)  # the previous result has been read
            for source, target in zip(_list_tensors(output), _list_tensors(self._outgoing), strict=True):
                to_memory_config(source, target.memory_config(), output_tensor=target)
            output = self._outgoing
            wait_for_event(self._read_queue, record_event(self.device, COMPUTE))
        slot = self._slots[index] if self._slots is not None else None
        if slot is None:
            result = _map_tensors(output, lambda tensor: tensor.cpu(blocking=False, cq_id=self._read_queue))
            if self._slots is not None:
                self._slots[index] = result
        else:
            result = slot
            for source, target in zip(_list_tensors(output), _list_tensors(slot), strict=True):
                copy_device_to_host_tensor(source, target, blocking=False, cq_id=self._read_queue)
        if self._read is not None:
            self._read = record_event(self.device, self._read_queue)
        return result

    def _check(self, host_inputs: Sequence[Tensor]) -> None:
        if self._schema is None:
            raise MeshError(
                "the pipeline was not compiled", expected="a compiled pipeline", fix="Call compile(host_input) first."
            )
        if not all(host_input.storage_type() is StorageType.HOST for host_input in host_inputs):
            raise ValueError("All input tensors must be on host")
        if self._slots is not None and len(host_inputs) > len(self._slots):
            raise ValueError(
                f"Number of inputs ({len(host_inputs)}) exceeds the number of pre-allocated output slots "
                f"({len(self._slots)})."
            )


def create_pipeline_from_config(
    config: PipelineConfig,
    model: Model,
    device: MeshDevice,
    l1_input_memory_config: MemoryConfig,
    dram_input_memory_config: MemoryConfig | None = None,
    dram_output_memory_config: MemoryConfig | None = None,
) -> Pipeline:
    """A pipeline for this configuration; raises for combinations that cannot work."""
    if config.num_command_queues not in (1, 2):
        raise ValueError(f"Unsupported pipeline configuration: {config}")
    staged = config.use_trace or config.num_command_queues == 2
    separate = config.all_transfers_on_separate_command_queue
    if separate and config.num_command_queues != 2:
        raise ValueError(f"{config} needs two command queues")
    if separate and not config.use_trace:
        raise ValueError("Pipelined I/O (all_transfers_on_separate_command_queue) requires tracing")
    if staged and dram_input_memory_config is None:
        raise ValueError("dram_input_memory_config must be provided for traced or two-queue pipelines")
    if separate and dram_output_memory_config is None:
        raise ValueError(
            "dram_output_memory_config must be provided when all_transfers_on_separate_command_queue=True."
        )
    if config.num_command_queues > len(device.queues):
        raise MeshError(
            f"{config} needs {config.num_command_queues} command queues, {device!r} has {len(device.queues)}",
            expected="as many queues as the pipeline uses",
            fix="Open the mesh with num_command_queues=2.",
        )
    return Pipeline(
        config,
        model,
        device,
        l1_input_memory_config,
        dram_input_memory_config if staged else None,
        dram_output_memory_config if separate else None,
    )


def get_memory_config_for_persistent_dram_tensor(
    shape: Sequence[int], shard_strategy: TensorMemoryLayout, dram_grid_size: CoreCoord
) -> MemoryConfig:
    """Even shards over as many DRAM banks as divide the sharded dim."""
    if len(shape) < 2:
        raise ShapeError(
            f"Shape must be 2D or higher (was {list(shape)})",
            expected="two dims or more",
            fix="Reshape the tensor to [rows, columns].",
        )
    if dram_grid_size.y != 1:
        raise ShapeError(
            f"Only 1D DRAM grid is supported (was {dram_grid_size})",
            expected="a grid of one row",
            fix="Pass CoreCoord(banks, 1).",
        )
    by_width = shard_strategy is TensorMemoryLayout.WIDTH_SHARDED
    if not by_width and shard_strategy is not TensorMemoryLayout.HEIGHT_SHARDED:
        raise ShapeError(
            f"Unsupported shard strategy: {shard_strategy}",
            expected="WIDTH_SHARDED or HEIGHT_SHARDED",
            fix="Use TensorMemoryLayout.WIDTH_SHARDED or HEIGHT_SHARDED.",
        )
    extent = shape[-1] if by_width else shape[-2]
    banks = next(count for count in range(dram_grid_size.x, 0, -1) if extent % count == 0)
    shard = [shape[-2], extent // banks] if by_width else [extent // banks, shape[-1]]
    cores = CoreRangeSet([CoreRange((0, 0), (banks - 1, 0))])
    return MemoryConfig(shard_strategy, BufferType.DRAM, ShardSpec(cores, shard, ShardOrientation.ROW_MAJOR))


def _map_tensors(structure: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(structure, Tensor):
        return change(structure)
    if isinstance(structure, (list, tuple)):
        return type(structure)(_map_tensors(item, change) for item in structure)
    return structure


def _list_tensors(structure: Any) -> list[Tensor]:
    if isinstance(structure, Tensor):
        return [structure]
    return [leaf for item in structure for leaf in _list_tensors(item)] if isinstance(structure, (list, tuple)) else []
