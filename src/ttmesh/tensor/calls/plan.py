"""Plans: what was decided for a call, and its execution: allocate, enqueue, return results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import DeallocatedError, MeshError
from ttmesh.chip.cells import Cell
from ttmesh.mesh.allocation.heap import Buffer, StepsUnfit
from ttmesh.mesh.device.mesh_device import MeshDevice, check_same_mesh
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.mesh.queue.program_cache import ProgramCache
from ttmesh.tensor.calls.call_temporaries import MemorySchedule
from ttmesh.tensor.calls.circular_buffer_checks import check_room
from ttmesh.tensor.calls.lane_calls import Arguments as Arguments
from ttmesh.tensor.calls.lane_calls import Wrap, only
from ttmesh.tensor.distribution.allocate import Footprint
from ttmesh.tensor.observer import LaunchedProgram, Step, observer
from ttmesh.tensor.spec.kind import Kind, kind_of
from ttmesh.tensor.tensor import Tensor

OUTPUTS = ("output_tensor", "optional_output_tensor", "output_tensors")  # tensors to write into, not to read
L1 = BufferType.L1
SAME_DEVICE = {  # what TT-NN says of operands on different meshes
    **dict.fromkeys(
        ["add", "subtract", "multiply", "divide", "maximum", "minimum", "pow", "eq", "ne", "gt", "ge", "lt", "le"],
        "Operands to eltwise binary need to be on the same device!",
    ),
    **dict.fromkeys(("matmul", "linear", "addmm"), "Operands to matmul need to be on the same device!"),
    "concat": "Operands to concat need to be on the same device.",
    "copy": "Output tensor needs to be on the same device as the input tensor!",
    "minimal_matmul": "minimal_matmul inputs must reside on the same device",
}
_ON_HOST = "Device Operations expect device tensors as inputs"  # of most operations
ON_HOST = {  # what TT-NN says of a tensor on the host, where it is another text
    **dict.fromkeys(("sum", "max", "min", "mean", "std", "var"), "Expected input tensor to be on device"),
    **dict.fromkeys(("matmul", "linear"), "Operand to matmul must be on device"),
    **dict.fromkeys(("argmax", "topk", "concat"), "Input tensor must be on device"),
    "softmax": "input_tensor.device() == nullptr, No device found, move input_tensor to device",
    "permute": "Tensor must already be on device",
}
FREED: dict[str, str] = {}  # what TT-NN says of a freed first operand, by operation, where it is not the usual text
MESHES = ("device", "mesh_device")  # the parameters that name the mesh of operations without tensors


class Plan:
    """What was decided for one key on one mesh."""

    __slots__ = (
        "body", "changing", "circular_buffer_bytes", "compute_config", "dispatch_bytes", "dram_steps", "exchanged_bytes",
        "footprints", "generation", "kinds", "make_body", "name", "plain", "program_count",
        "programs", "schedule", "single", "wrap",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        kinds: tuple[Kind, ...],
        footprints: tuple[Footprint, ...],
        wrap: Wrap,
        make_body: Callable[..., Body],
        changing: tuple[str, ...] = (),
        *,
        programs: tuple[Hashable, ...] = (),
        schedule: MemorySchedule | None = None,
        circular_buffer_bytes: int = 0,
        dispatch_bytes: int = 0,
        exchanged_bytes: int | None = None,
        compute_config: Hashable = None,
    ) -> None:
        self.name = name
        self.kinds = kinds  # of the results
        self.footprints = footprints  # of the results
        self.wrap = wrap  # puts the results into the form that is returned
        self.single = wrap is only
        self.plain = schedule is None or schedule.repeated_steps == schedule.results  # once programs are compiled
        self.dram_steps = None if schedule is None else schedule.dram_steps
        self.make_body = make_body  # from the values of the changing arguments
        self.changing = changing
        self.body = None if changing else make_body()  # where no value decides
        self.programs = programs  # device programs, by their keys in TT-NN's program cache
        self.program_count = len(programs)
        self.schedule = schedule  # of allocations, where there are more than the results
        self.circular_buffer_bytes = circular_buffer_bytes  # per core
        self.dispatch_bytes = dispatch_bytes  # of the programs in a trace
        self.exchanged_bytes = exchanged_bytes  # of a collective: what every chip gives to it
        self.compute_config = compute_config
        self.generation = -1

    def run(self, mesh: MeshDevice, reads: Sequence[Cell], body: Body, outputs: Sequence[Tensor | None] = ()) -> Any:
        """Allocate the results that are not given and enqueue the programs."""
        cache = mesh.program_cache
        compiled = self.generation == cache.generation
        if not compiled:
            self._count(cache)
        if self.circular_buffer_bytes and mesh.heap.live[L1]:
            check_room(self.name, self.circular_buffer_bytes, mesh)
        if self.single and not outputs:
            if self.schedule is None or (compiled and self.plain):
                buffer = mesh.heap.take(self.footprints[0], self.name)
            elif compiled and self.dram_steps is not None:
                try:
                    buffer = mesh.heap.take(self.footprints[0], self.name, self.dram_steps)
                except StepsUnfit:
                    buffer = self._allocate(self.schedule, mesh, (), compiled)[0]
            else:
                buffer = self._allocate(self.schedule, mesh, (), compiled)[0]
            mesh.run_program(self.name, body, reads, (buffer._cell,), self.program_count, self.dispatch_bytes)  # type: ignore[arg-type]  # a new buffer has its cell
            result = Tensor.on_device(self.kinds[0], buffer, mesh)
            if observer.watchers:
                self._report(body, reads, (), result)
            return result
        buffers = None if self.schedule is None else self._allocate(self.schedule, mesh, outputs, compiled)
        results: list[Tensor] = []
        for i, kind in enumerate(self.kinds):
            given = outputs[i] if i < len(outputs) else None
            if given is not None:
                given.buffer.cell.writes += 1
                if given.kind is not kind:  # as in TT-NN, the caller's tensor takes the topology of the result
                    given.kind = kind_of(given.kind.spec, kind.topology, given.kind.presence)
            elif buffers is not None:
                given = Tensor.on_device(kind, buffers[i], mesh)
            else:
                given = Tensor.on_device(kind, mesh.heap.take(self.footprints[i], self.name), mesh)
            results.append(given)
        writes = [tensor.buffer.cell for tensor in results]
        mesh.run_program(self.name, body, reads, writes, self.program_count, self.dispatch_bytes)
        wrapped = self.wrap(results)
        if observer.watchers:
            self._report(body, reads, outputs, wrapped)
        return wrapped

    def _allocate(
        self, schedule: MemorySchedule, mesh: MeshDevice, outputs: Sequence[Tensor | None], compiled: bool
    ) -> dict[int, Buffer]:
        """The memory of the results that are not given, by result; temporaries come and go on the way."""
        heap, cache, name, rooms = mesh.heap, mesh.program_cache, self.name, schedule.rooms
        made: dict[int, Buffer] = {}
        temporaries: dict[int, Buffer | int] = {}
        try:
            for step in schedule.repeated_steps if compiled else schedule.steps:
                if step < 0:
                    if ~step in temporaries:
                        heap.free_temporary(rooms[~step], temporaries.pop(~step))
                elif (result := schedule.result_numbers.get(step)) is None:
                    if step not in schedule.kept:
                        temporaries[step] = heap.take_temporary(rooms[step], name)
                    elif schedule.kept[step] not in cache.buffers:
                        cache.buffers[schedule.kept[step]] = heap.take(rooms[step], name)
                elif result >= len(outputs) or outputs[result] is None:
                    made[result] = heap.take(rooms[step], name)
        finally:
            for number, temporary in temporaries.items():  # what an allocation that failed left
                heap.free_temporary(rooms[number], temporary)
        if not cache.enabled:
            cache.buffers.clear()
        return made

    def _count(self, cache: ProgramCache) -> None:
        """Count the programs, once until the cache is cleared."""
        cache.compile(self.name, self.programs)
        self.generation = cache.generation if cache.enabled else -1

    def _report(self, body: Body, reads: Sequence[Cell], outputs: Sequence[Tensor | None], result: Any) -> None:
        step = Step(self, body, reads, outputs, result)
        for watcher in observer.watchers:
            watcher.after_run(step)


def check_allocated(name: str, tensor: Tensor) -> None:
    """Refuse a device tensor whose memory was freed, in the words of the operation."""
    if name in FREED and tensor._buffer is not None and tensor._buffer._cell is None:
        raise DeallocatedError(
            f"{FREED[name]}: this tensor's memory was freed",
            expected="a tensor that was not deallocated",
            fix="Use it before deallocate() or close_mesh_device(), or make a copy.",
        )
    tensor.check_allocated()


def find_cell(name: str, tensor: Tensor) -> Cell:
    """The cell of an operand; raises for one on the host or freed."""
    check_allocated(name, tensor)
    return tensor.buffer.cell


def execute(
    plan: Plan,
    mesh: MeshDevice,
    tensors: Sequence[Tensor],
    arguments: Arguments,
    outputs: Sequence[Tensor | None] = (),
    launched: LaunchedProgram | None = None,
) -> Any:
    """Run a plan on tensors, with this call's arguments by name; watchers may wrap the body of what is launched."""
    reads = [tensor.buffer.cell for tensor in tensors]
    body = plan.body or plan.make_body(*(arguments[name] for name in plan.changing))
    if launched is not None:
        for watcher in observer.watchers:
            body = watcher.wrap_body(plan, launched, body)
    return plan.run(mesh, reads, body, outputs)


def mesh_of(name: str, tensors: Sequence[Tensor], arguments: Arguments) -> MeshDevice:
    """The mesh that a call runs on; refuses tensors on the host or on different meshes."""
    mesh: MeshDevice | None = None
    if not tensors:
        mesh = next((arguments[key] for key in MESHES if type(arguments.get(key)) is MeshDevice), None)
    for tensor in tensors:
        own = tensor.device()
        if own is None:
            raise MeshError(
                f"{_say_on_host(name, tensor, arguments)}: {name} got a tensor on the host",
                expected="tensors on a device",
                fix="Move it with to_device() first.",
            )
        if mesh is None:
            mesh = own
        elif own is not mesh:
            check_same_mesh(mesh, own, SAME_DEVICE.get(name.rpartition(".")[2]))
    if mesh is None:
        raise MeshError(
            f"{name}: expected a non-empty list of Tensors! It got no tensor",
            expected="at least one device tensor",
            fix="Pass a tensor that is on a mesh.",
        )
    mesh.check_open()
    return mesh


def _say_on_host(name: str, tensor: Tensor, arguments: Arguments) -> str:
    """TT-NN's words, and the parameter that the tensor was passed for: element-wise ones name it by its letter."""
    short = name.rpartition(".")[2]
    given = next((key for key, value in arguments.items() if value is tensor), "")
    if given.startswith("input_tensor_") and short not in ON_HOST:
        return f"Input tensor {given[-1].upper()} must be on device, got storage type: StorageType::HOST"
    text = ON_HOST.get(short, _ON_HOST)
    reduces = text == ON_HOST["sum"] and tuple(tensor.shape[-2:]) != tuple(tensor.padded_shape[-2:])
    if reduces or (short in ("matmul", "linear") and given != "input_tensor_a"):  # a padding is filled first
        text = _ON_HOST
    return f"{text}: {given}" if given else text
