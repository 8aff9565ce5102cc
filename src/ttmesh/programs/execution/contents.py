"""The bytes that kernels use while a workload runs: L1 of cores and contents of cells, for chips that run together."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ttmesh.base.cores import CoreCoord
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.programs.buffers.page_layout import PageLayout
from ttmesh.programs.execution.ordering import Actor, Shadow, Transfers
from ttmesh.programs.execution.rings import PageRing
from ttmesh.programs.execution.scheduler import Task

GRANULE = 16384  # bytes that the race check looks at together: a few pages


class Diverged(BaseException):
    """Chips that run together differ: the run is dropped and repeated with more lanes. Kernels must not catch it."""


class NocError(MeshError):
    """An access outside every buffer."""


class NeedsOtherRank(BaseException):
    """A kernel accesses a chip of another rank: the run is repeated with all lanes. Kernels must not catch it."""


@dataclass(frozen=True)
class Frame:
    """The lanes of a run: those of this rank or, with `gathers`, those of the full mesh, gathered here."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    gathers: RankBlock | None = None

    @staticmethod
    def of(mesh: MeshDevice, *, whole: bool = False) -> Frame:
        """This rank's lanes, or with `whole` those of all ranks."""
        block, shape = mesh.rank_block, mesh.shape.to_tuple()
        if block is None:
            return Frame(shape, (0,) * len(shape))
        return Frame(shape, (0,) * len(shape), block) if whole else Frame(block.block_shape, block.start)

    def read(self, cell: Cell) -> torch.Tensor:
        """The bytes of a cell."""
        own = cell.read_bytes()
        return own if self.gathers is None else self.gathers.gather_along(own)

    def write(self, cell: Cell, lanes: torch.Tensor) -> None:
        """Write the result of a run to a cell."""
        cell.write_bytes(lanes if self.gathers is None else self.gathers.narrow_to_block(lanes).clone())


class Chips:
    """A box of chips that run one program together; `lanes` are the extents for which memory is kept.

    An axis of the box along which all chips hold the same values has one lane, so that it is computed once.
    """

    __slots__ = ("box", "cores", "covers", "index", "lanes")

    def __init__(self, box: MeshCoordinateRange, frame: Frame, lanes: tuple[int, ...]) -> None:
        self.box, self.lanes = box, lanes
        ends = zip(box.start_coord, box.end_coord, frame.start, strict=True)
        self.index = tuple(slice(a - first, b + 1 - first) for a, b, first in ends)
        self.covers = tuple(extent == n for extent, n in zip(box.shape, frame.shape, strict=True))
        self.cores: dict[int, CoreMemory] = {}  # by L1 bank

    def coord(self) -> MeshCoordinate:
        """The coordinate of a single chip; several chips that run together must diverge first."""
        if self.box.start_coord != self.box.end_coord:
            raise Diverged
        return self.box.start_coord


class CoreMemory:
    """The L1 of a core that a program uses: circular buffers as bytes, semaphores as numbers."""

    __slots__ = ("_shadow", "bank", "bytes", "core", "end", "rings", "semaphores", "start", "waiters")

    def __init__(self, core: CoreCoord, bank: int, start: int, data: torch.Tensor) -> None:
        self.core, self.bank, self.start, self.end = core, bank, start, start + data.shape[-1]
        self.bytes = data
        self._shadow = Shadow(self._describe_offset, GRANULE)
        self.rings: dict[int, PageRing] = {}
        self.semaphores: dict[int, int] = {}  # by address
        self.waiters: dict[int, list[Task]] = {}

    def shadow(self, chips: Chips) -> Shadow:
        """The accesses to these bytes."""
        return self._shadow

    def view(self, chips: Chips) -> torch.Tensor:
        """The bytes, to be read."""
        return self.bytes

    def writable(self, chips: Chips) -> torch.Tensor:
        """The bytes, to be changed."""
        return self.bytes

    def _describe_offset(self, offset: int) -> str:
        for ring in self.rings.values():
            if 0 <= self.start + offset - ring.placement.address < ring.placement.size_bytes:
                return f"cb {ring.placement.index} on core {self.core.str()}"
        return f"L1 of core {self.core.str()}"

    def offset(self, address: int, size: int) -> int:
        """The offset of an address in the bytes; an access must stay inside one circular buffer."""
        for ring in self.rings.values():
            placement = ring.placement
            if placement.address <= address < placement.address + placement.size_bytes:
                if address + size > placement.address + placement.size_bytes:
                    raise NocError(
                        f"{size} B at L1 address {address} of core {self.core.str()} run over the end of cb "
                        f"{placement.index}, {placement.address + placement.size_bytes}",
                        expected="an access inside the circular buffer",
                        fix="Use blocks that divide the buffer.",
                    )
                return address - self.start
        raise NocError(
            f"L1 address {address} of core {self.core.str()} is in no circular buffer",
            expected="an address from get_write_ptr or get_read_ptr",
            fix="Use the pointers of a circular buffer of this core.",
        )


class Contents:
    """The bytes of a cell during a run; the cell itself changes only when the run has succeeded."""

    __slots__ = ("_blank", "_frame", "_lanes", "_shadows", "_views", "_writable", "cell", "changed", "layout")

    def __init__(self, cell: Cell, layout: PageLayout, frame: Frame) -> None:
        self.cell, self.layout, self.changed = cell, layout, False
        self._frame = frame
        self._blank = cell.values is None and cell.raw is None and frame.gathers is None
        self._lanes: torch.Tensor | None = None
        self._views: dict[Chips, torch.Tensor] = {}
        self._writable: dict[Chips, torch.Tensor] = {}
        self._shadows: dict[Chips, Shadow] = {}

    def shadow(self, chips: Chips) -> Shadow:
        """The accesses to these chips' bytes."""
        found = self._shadows.get(chips)
        if found is None:
            name = f"the buffer at {self.cell.buffer_type.name} address {self.cell.address}"
            found = self._shadows[chips] = Shadow(lambda offset: name, GRANULE)
        return found

    def view(self, chips: Chips) -> torch.Tensor:
        """These chips' bytes, for reading."""
        seen = self._views.get(chips)
        if seen is None:
            seen = self._select(self._get_lanes(), chips)
            if any(have > lanes for have, lanes in zip(seen.shape, chips.lanes, strict=False)):
                raise Diverged
            self._views[chips] = seen
        return seen

    def writable(self, chips: Chips) -> torch.Tensor:
        """These chips' bytes, for writing; the first call makes a copy."""
        seen = self._writable.get(chips)
        if seen is not None:
            return seen
        axes = len(self._frame.shape)
        once = [n == 1 and all_of_it for n, all_of_it in zip(chips.lanes, chips.covers, strict=True)]
        have = (1,) * axes if self._lanes is None and self._blank else tuple(self._get_lanes().shape[:axes])
        need = tuple(h if same else n for h, same, n in zip(have, once, self._frame.shape, strict=True))
        if not self.changed or need != have:
            if self._blank and not self.changed:
                shape = (*need, self.cell.size_bytes)
                self._lanes = torch.zeros(shape, dtype=torch.uint8, device=self.cell.device)
            else:
                self._lanes = self._get_lanes().expand(*need, self.cell.size_bytes).clone()
            self.changed = True
            self._views.clear()
            self._writable.clear()
        seen = self._writable[chips] = self._select(self._get_lanes(), chips)
        return seen

    def commit(self) -> None:
        """Write the changed bytes to the cell."""
        if self.changed:
            self._frame.write(self.cell, self._get_lanes())

    def _get_lanes(self) -> torch.Tensor:
        if self._lanes is None:
            self._lanes = self._frame.read(self.cell)
        return self._lanes

    def _select(self, lanes: torch.Tensor, chips: Chips) -> torch.Tensor:
        return lanes[tuple(slice(None) if n == 1 else box for n, box in zip(lanes.shape, chips.index, strict=False))]


Owner = CoreMemory | Contents
Piece = tuple[Owner, int, int]  # where, offset in its bytes, size


def touch(owner: Owner, offset: int, size: int, chips: Chips, actor: Actor, *, writes: bool) -> None:
    """Record that a kernel reads or writes bytes now."""
    clock = actor.clock
    owner.shadow(chips).touch(offset, size, clock, actor.id, clock[actor.id], writes, actor.site())


class NocTransfer:
    """A pending transfer: the copy is made at the barrier, but counts as an access at the time of the call."""

    __slots__ = (
        "_known",
        "_noted",
        "actor_version",
        "arriving",
        "at",
        "leaving",
        "site",
        "size",
        "source",
        "start",
        "target",
    )

    def __init__(
        self,
        source: Owner,
        start: int,
        target: Owner,
        at: int,
        size: int,
        leaving: Transfers,
        arriving: Transfers,
        actor: Actor,
    ) -> None:
        self.source, self.start, self.target, self.at, self.size = source, start, target, at, size
        self.leaving, self.arriving, self.site = leaving, arriving, actor.site()
        self._known, self.actor_version, self._noted = actor.clock.copy(), actor.version, 0

    def note(self, chips: Chips) -> None:
        """Record its accesses for the race check."""
        done, size, known, site = self._noted, self.size - self._noted, self._known, self.site
        if size:
            leaving, arriving, self._noted = self.leaving, self.arriving, self.size
            self.source.shadow(chips).touch(self.start + done, size, known, leaving.id, leaving.time, False, site)
            self.target.shadow(chips).touch(self.at + done, size, known, arriving.id, arriving.time, True, site)
