"""The processor a kernel runs on: its arguments, its core and its circular buffers, under TT-Metal's names."""

from __future__ import annotations

from typing import Any

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import DataType
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshShape
from ttmesh.programs.circular_buffers import CircularBufferError
from ttmesh.programs.execution.contents import Chips, CoreMemory
from ttmesh.programs.execution.kernel_memory import Memory
from ttmesh.programs.execution.ordering import Site
from ttmesh.programs.execution.rings import PageRing
from ttmesh.programs.execution.scheduler import Wait
from ttmesh.programs.l1_layout import ProgramLayout
from ttmesh.programs.program import Kernel


class KernelCore:
    """The processor a kernel runs on: its arguments and its core's circular buffers."""

    packs = False  # whether pages get into circular buffers by pack_tile alone

    def __init__(
        self,
        kernel: Kernel,
        args: tuple[int, ...],
        common: tuple[int, ...],
        placement: ProgramLayout,
        memory: Memory,
        chips: Chips,
        l1: CoreMemory,
        running: list[Chips],
    ) -> None:
        self._kernel, self._args, self._common, self._placement = kernel, args, common, placement
        self._memory, self._chips, self._l1, self._running = memory, chips, l1, running
        where = "" if chips.box.start_coord != chips.box.end_coord else f" of {chips.box.start_coord!r}"
        self.actor = memory.new_actor(f"{kernel.name} on core {l1.core.str()}{where}")
        self._waits: dict[Wait, Site] = {}  # waits that the kernel has not awaited yet

    # ---- arguments

    def get_arg_val(self, index: int) -> int:
        """A runtime argument of this core."""
        return int(self._get_argument(self._args, index, "runtime argument"))

    def get_common_arg_val(self, index: int) -> int:
        """A runtime argument of all cores."""
        return int(self._get_argument(self._common, index, "common runtime argument"))

    def get_compile_time_arg_val(self, index: int) -> Any:
        """A compile-time argument."""
        return self._get_argument(self._kernel.config.compile_args, index, "compile-time argument")

    def get_named_compile_time_arg_val(self, name: str) -> Any:
        """A compile-time argument by its name."""
        return self._kernel.config.named_compile_args[name]

    # ---- where it is

    @property
    def logical_core(self) -> CoreCoord:
        """This core."""
        return self._l1.core

    @property
    def my_x(self) -> int:
        """This core's column on the network."""
        return self._memory.mesh.worker_core_from_logical_core(self._l1.core).x

    @property
    def my_y(self) -> int:
        """This core's row on the network."""
        return self._memory.mesh.worker_core_from_logical_core(self._l1.core).y

    @property
    def mesh_coord(self) -> MeshCoordinate:
        """This chip. A kernel that asks runs once per chip instead of once for all."""
        return self._chips.coord()

    @property
    def mesh_shape(self) -> MeshShape:
        """The mesh this chip belongs to."""
        return self._memory.mesh.shape

    # ---- circular buffers

    def cb_reserve_back(self, cb_id: int, num_pages: int) -> Wait:
        """Await room for pages."""
        return self._track_wait(self._ring(cb_id).reserve_back(num_pages, self.actor))

    def cb_push_back(self, cb_id: int, num_pages: int) -> None:
        """Pass reserved pages to the consumer."""
        self._ring(cb_id).push_back(num_pages, self.actor, packs=self.packs)

    def cb_wait_front(self, cb_id: int, num_pages: int) -> Wait:
        """Await filled pages."""
        return self._track_wait(self._ring(cb_id).wait_front(num_pages, self.actor))

    def cb_pop_front(self, cb_id: int, num_pages: int) -> None:
        """Return filled pages to the producer."""
        self._ring(cb_id).pop_front(num_pages, self.actor)

    def cb_pages_available_at_front(self, cb_id: int, num_pages: int) -> bool:
        """Whether pages are filled now."""
        return self._ring(cb_id).pages_available(num_pages, self.actor)

    def cb_pages_reservable_at_back(self, cb_id: int, num_pages: int) -> bool:
        """Whether pages are free now."""
        return self._ring(cb_id).pages_reservable(num_pages)

    def get_read_ptr(self, cb_id: int) -> int:
        """The L1 address of the oldest filled page."""
        return self._ring(cb_id).read_address()

    def get_write_ptr(self, cb_id: int) -> int:
        """The L1 address of the next page to fill."""
        return self._ring(cb_id).write_address()

    def get_tile_size(self, cb_id: int) -> int:
        """Bytes of a page."""
        return self._ring(cb_id).placement.page_bytes

    def get_dataformat(self, cb_id: int) -> DataType:
        """The format of the tiles."""
        return self._ring(cb_id).placement.dtype

    # ---- inside

    def finish(self) -> None:
        """Refuse to end with a wait that was never awaited."""
        for site in self._waits.values():
            raise MeshError(
                f"{site} waits for nothing: the call was not awaited",
                expected="`await` before cb_wait_front, cb_reserve_back and noc_semaphore_wait",
                fix="Write `await core.…` in an `async def` kernel.",
            )

    def _track_wait(self, wait: Wait) -> Wait:
        wait.unawaited = self._waits
        self._waits[wait] = self.actor.site()
        return wait

    def _ring(self, cb_id: int) -> PageRing:
        ring = self._l1.rings.get(cb_id)
        if ring is None:
            raise CircularBufferError(
                f"{self._kernel.name} uses cb {cb_id} on core {self._l1.core.str()}, which has {sorted(self._l1.rings)}",
                expected="a circular buffer of the program on this core",
                fix="Create it with create_circular_buffer.",
            )
        return ring

    def _get_argument(self, values: Any, index: int, what: str) -> Any:
        if not 0 <= index < len(values):
            raise MeshError(
                f"{self._kernel.name} on core {self._l1.core.str()} asks for {what} {index} of {len(values)}",
                expected="an argument that was set",
                fix="Set it with set_runtime_args, set_common_runtime_args or compile_args.",
            )
        return values[index]
