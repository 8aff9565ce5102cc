"""The memory that kernels see while a workload runs: the bytes of cells, the L1 of cores, counters. Committed at the end."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.errors import MeshError
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.ranks.rank_block import RankBlock
from ttmesh.programs.addresses import NocAddress
from ttmesh.programs.circular_buffers import PageRing, PlacedBuffer
from ttmesh.programs.mesh_buffer import layout_of
from ttmesh.programs.page_layout import PageLayout
from ttmesh.programs.scheduler import Scheduler, Task


class Diverged(BaseException):
    """Chips that run together must be told apart: the run is dropped and done again. Kernels must not catch it."""


class NocError(MeshError):
    """An access that hits no buffer."""


class Crosses(BaseException):
    """A kernel reaches for a chip of another rank: the run is dropped and done again with all lanes. Never caught there."""


@dataclass(frozen=True)
class Frame:
    """Which lanes a run works on: those of this rank, or, with `gathers`, those of the whole mesh, brought here."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    gathers: RankBlock | None = None

    @staticmethod
    def of(mesh: MeshDevice, *, whole: bool = False) -> Frame:
        """This rank's lanes, or everybody's."""
        part, shape = mesh.part, mesh.shape.to_tuple()
        if part is None:
            return Frame(shape, (0,) * len(shape))
        return Frame(shape, (0,) * len(shape), part) if whole else Frame(part.block, part.start)

    def read(self, cell: Cell) -> torch.Tensor:
        """The bytes of a cell."""
        own = cell.read_bytes()
        return own if self.gathers is None else self.gathers.over_ranks(own)

    def write(self, cell: Cell, lanes: torch.Tensor) -> None:
        """What a run leaves in a cell."""
        cell.write_bytes(lanes if self.gathers is None else self.gathers.own_block(lanes).clone())


class Chips:
    """Chips that run one program as one: a box of the mesh. `lanes` is how much of it memory is kept for.

    An axis of the box on which every chip holds the same has one lane: those chips are computed once.
    """

    __slots__ = ("box", "cores", "covers", "index", "lanes")

    def __init__(self, box: MeshCoordinateRange, frame: Frame, lanes: tuple[int, ...]) -> None:
        self.box, self.lanes = box, lanes
        ends = zip(box.start_coord, box.end_coord, frame.start, strict=True)
        self.index = tuple(slice(a - first, b + 1 - first) for a, b, first in ends)
        self.covers = tuple(extent == n for extent, n in zip(box.shape, frame.shape, strict=True))
        self.cores: dict[int, CoreMemory] = {}  # by L1 bank

    def coord(self) -> MeshCoordinate:
        """The one chip this is; chips that run together have no coordinate in common."""
        if self.box.start_coord != self.box.end_coord:
            raise Diverged
        return self.box.start_coord


class CoreMemory:
    """The part of a core's L1 that a program holds: circular buffers as bytes, semaphores as numbers."""

    __slots__ = ("bank", "bytes", "core", "end", "rings", "semaphores", "start", "waiters")

    def __init__(self, core: CoreCoord, bank: int, start: int, data: torch.Tensor) -> None:
        self.core, self.bank, self.start, self.end = core, bank, start, start + data.shape[-1]
        self.bytes = data
        self.rings: dict[int, PageRing] = {}
        self.semaphores: dict[int, int] = {}  # by address
        self.waiters: dict[int, list[Task]] = {}

    def view(self, chips: Chips) -> torch.Tensor:
        """The bytes, to be read."""
        return self.bytes

    def writable(self, chips: Chips) -> torch.Tensor:
        """The bytes, to be changed."""
        return self.bytes

    def offset(self, address: int, size: int) -> int:
        """Where an address lies in the bytes; an access must stay inside one circular buffer."""
        for ring in self.rings.values():
            placed = ring.placed
            if placed.address <= address < placed.address + placed.size_bytes:
                if address + size > placed.address + placed.size_bytes:
                    raise NocError(
                        f"{size} B at L1 address {address} of core {self.core.str()} run over the end of cb {placed.index}, "
                        f"{placed.address + placed.size_bytes}",
                        expected="an access inside the circular buffer",
                        fix="Use blocks that divide the buffer.",
                    )
                return address - self.start
        raise NocError(
            f"L1 address {address} of core {self.core.str()} lies in no circular buffer",
            expected="an address from get_write_ptr or get_read_ptr",
            fix="Create a circular buffer there.",
        )


class Contents:
    """The bytes of a cell during a run; the cell itself changes only when the run has ended well."""

    __slots__ = ("_blank", "_frame", "_lanes", "_views", "_writable", "cell", "changed", "layout")

    def __init__(self, cell: Cell, layout: PageLayout, frame: Frame) -> None:
        self.cell, self.layout, self.changed = cell, layout, False
        self._frame = frame
        self._blank = cell.values is None and cell.raw is None and frame.gathers is None
        self._lanes: torch.Tensor | None = None
        self._views: dict[Chips, torch.Tensor] = {}
        self._writable: dict[Chips, torch.Tensor] = {}

    def view(self, chips: Chips) -> torch.Tensor:
        """What these chips hold, to be read."""
        seen = self._views.get(chips)
        if seen is None:
            seen = self._of(self._held(), chips)
            if any(have > lanes for have, lanes in zip(seen.shape, chips.lanes, strict=False)):
                raise Diverged
            self._views[chips] = seen
        return seen

    def writable(self, chips: Chips) -> torch.Tensor:
        """What these chips hold, to be changed; the first time a copy is made."""
        seen = self._writable.get(chips)
        if seen is not None:
            return seen
        axes = len(self._frame.shape)
        once = [n == 1 and all_of_it for n, all_of_it in zip(chips.lanes, chips.covers, strict=True)]
        have = (1,) * axes if self._lanes is None and self._blank else tuple(self._held().shape[:axes])
        need = tuple(h if same else n for h, same, n in zip(have, once, self._frame.shape, strict=True))
        if not self.changed or need != have:
            if self._blank and not self.changed:
                shape = (*need, self.cell.size_bytes)
                self._lanes = torch.zeros(shape, dtype=torch.uint8, device=self.cell.device)
            else:
                self._lanes = self._held().expand(*need, self.cell.size_bytes).clone()
            self.changed = True
            self._views.clear()
            self._writable.clear()
        seen = self._writable[chips] = self._of(self._held(), chips)
        return seen

    def commit(self) -> None:
        """Put the bytes into the cell."""
        if self.changed:
            self._frame.write(self.cell, self._held())

    def _held(self) -> torch.Tensor:
        if self._lanes is None:
            self._lanes = self._frame.read(self.cell)
        return self._lanes

    def _of(self, lanes: torch.Tensor, chips: Chips) -> torch.Tensor:
        return lanes[tuple(slice(None) if n == 1 else box for n, box in zip(lanes.shape, chips.index, strict=False))]


Owner = CoreMemory | Contents
Piece = tuple[Owner, int, int]  # where, offset in its bytes, size


class Memory:
    """All memory of one run of a workload."""

    def __init__(self, mesh: MeshDevice, cells: Iterable[Cell], scheduler: Scheduler, frame: Frame) -> None:
        self.mesh, self.scheduler, self.frame = mesh, scheduler, frame
        self.columns = mesh.compute_with_storage_grid_size().x
        self._contents: dict[BufferType, dict[int, Contents]] = {kind: {} for kind in BufferType}
        self._waiters: dict[tuple[Chips, Contents, int], list[Task]] = {}
        self._loads: dict[tuple[int, int], int] = {}  # bytes over links, by (from, to)
        self.shadowed: set[Contents] = set()  # buffers that circular buffers lie in: cores hold their bytes meanwhile
        self._named: dict[BufferType, list[Cell]] = {kind: [] for kind in BufferType}
        for cell in cells:
            self._named[cell.buffer_type].append(cell)

    def commit(self) -> None:
        """Let the cells hold what kernels wrote, and count what crossed links."""
        for contents in self._contents.values():
            for one in contents.values():
                one.commit()
        if self._loads:
            self.mesh.traffic.counters.add(self._loads)

    def take(
        self, backed: Iterable[PlacedBuffer], core: CoreCoord, chips: Chips, data: torch.Tensor, start: int
    ) -> None:
        """Fill a core's circular buffers that lie in L1 buffers with what its shards hold."""
        for placed in backed:
            at = placed.address - start
            for owner, offset, size in self._shard(placed, core, chips):
                data.narrow(-1, at, size).copy_(owner.view(chips).narrow(-1, offset, size))
                at += size

    def put_back(self, backed: Iterable[PlacedBuffer], core: CoreCoord, chips: Chips) -> None:
        """Let the shards hold what those circular buffers hold now."""
        l1 = chips.cores[core.y * self.columns + core.x]
        for placed in backed:
            at = placed.address - l1.start
            for owner, offset, size in self._shard(placed, core, chips):
                now = l1.bytes.narrow(-1, at, size)
                if not torch.equal(owner.view(chips).narrow(-1, offset, size).expand_as(now), now):
                    owner.writable(chips).narrow(-1, offset, size).copy_(now)
                at += size

    def _shard(self, placed: PlacedBuffer, core: CoreCoord, chips: Chips) -> list[Piece]:
        where = NocAddress(BufferType.L1, core.y * self.columns + core.x, placed.address)
        pieces = self._in_buffers(where, placed.size_bytes)
        self.shadowed.update(owner for owner, _, _ in pieces if isinstance(owner, Contents))
        return pieces

    @property
    def used_links(self) -> bool:
        """Whether anything went over a link."""
        return bool(self._loads)

    def crossed(self, hop: tuple[int, int], size: int) -> None:
        """Bytes went over a link."""
        self._loads[hop] = self._loads.get(hop, 0) + size

    def find(self, kind: BufferType, address: int) -> Contents | None:
        """The buffer at an address, also in its middle."""
        exact = self._contents[kind].get(address)
        if exact is not None:
            return exact
        inside = (c for c in self._contents[kind].values() if 0 <= address - c.cell.address < c.cell.bank_bytes)
        found = next(inside, None)
        if found is None:
            everything = list(self.mesh.heap.live[kind].values())  # the host may allocate while a worker runs this
            known = (*self._named[kind], *everything)
            cell = next((c for c in known if 0 <= address - c.address < c.bank_bytes), None)
            found = self._open(cell) if cell is not None else None
        if found is None and kind is BufferType.L1:
            return self.find(BufferType.L1_SMALL, address)
        return found

    def pieces(self, where: NocAddress, size: int, chips: Chips) -> list[Piece]:
        """The bytes at an address as parts that each lie in one page."""
        if where.kind is BufferType.L1:
            core = chips.cores.get(where.bank)
            if core is not None and core.start <= where.address < core.end:
                return [(core, core.offset(where.address, size), size)]
        return self._in_buffers(where, size)

    def _in_buffers(self, where: NocAddress, size: int) -> list[Piece]:
        contents = self.find(where.kind, where.address)
        if contents is None:
            raise self._outside(where, size, "nothing is allocated there")
        layout, done = contents.layout, 0
        found: list[Piece] = []
        start = where.address - contents.cell.address
        while done < size:
            place = layout.find(where.bank, start + done)
            if place is None:
                raise self._outside(
                    where,
                    size,
                    f"the buffer at {contents.cell.address} has {layout.pages} pages of {layout.page_bytes} B in "
                    f"{len(layout.banks)} banks",
                )
            page, within = place
            part = min(size - done, layout.page_bytes - within)
            found.append((contents, page * layout.page_bytes + within, part))
            done += part
            if done < size and layout.slot_bytes > layout.page_bytes:
                raise self._outside(where, size, f"pages of {layout.page_bytes} B have padding between them")
        return found

    def copy(self, source: Piece, of: Chips, target: Owner, offset: int, on: Chips) -> None:
        """Move bytes now."""
        owner, start, size = source
        into = target.writable(on)  # first: a buffer copied onto itself must be read from its new bytes
        into.narrow(-1, offset, size).copy_(owner.view(of).narrow(-1, start, size))
        if self._waiters and isinstance(target, Contents):
            self._touch(target)

    def load(self, chips: Chips, where: NocAddress) -> int:
        """The 32-bit number at an L1 address."""
        core = chips.cores.get(where.bank)
        if core is not None and where.address in core.semaphores:
            return core.semaphores[where.address]
        owner, offset, _ = self._word(chips, where)
        words = owner.view(chips).narrow(-1, offset, 4).reshape(-1, 4)
        if len(words) > 1 and not bool((words == words[0]).all()):
            raise Diverged
        return int.from_bytes(bytes(words[0].tolist()), "little")

    def store(self, chips: Chips, where: NocAddress, value: int) -> None:
        """Write a 32-bit number at an L1 address and wake who waits for it."""
        core = chips.cores.get(where.bank)
        if core is not None and where.address in core.semaphores:
            core.semaphores[where.address] = value & 0xFFFFFFFF
            waiters = core.waiters.get(where.address)
            if waiters:
                self.scheduler.wake(waiters)
            return
        owner, offset, _ = self._word(chips, where)
        word = torch.frombuffer(bytearray((value & 0xFFFFFFFF).to_bytes(4, "little")), dtype=torch.uint8)
        owner.writable(chips).narrow(-1, offset, 4).copy_(word)
        if self._waiters and isinstance(owner, Contents):
            self._touch(owner)

    def waiters(self, chips: Chips, where: NocAddress) -> list[Task]:
        """Who sleeps until the number at an L1 address changes."""
        core = chips.cores.get(where.bank)
        if core is not None and where.address in core.semaphores:
            return core.waiters.setdefault(where.address, [])
        owner, offset, _ = self._word(chips, where)
        if isinstance(owner, CoreMemory):
            raise NocError(
                f"a kernel waits for {where!r}, which lies in a circular buffer",
                expected="a semaphore",
                fix="Create one with create_semaphore or create_global_semaphore.",
            )
        return self._waiters.setdefault((chips, owner, offset), [])

    def chips_at(self, coord: MeshCoordinate, running: Iterable[Chips]) -> Chips:
        """The chip at a coordinate, with its program's L1 when it runs one of this workload."""
        if self.frame.gathers is None and not self.mesh.is_local(coord):
            raise Crosses
        box = MeshCoordinateRange(coord)
        for chips in running:
            if chips.box == box:
                return chips
        return Chips(box, self.frame, (1,) * coord.dims())

    def _touch(self, contents: Contents) -> None:
        for (_, owner, _), waiters in self._waiters.items():
            if owner is contents and waiters:
                self.scheduler.wake(waiters)

    def _word(self, chips: Chips, where: NocAddress) -> Piece:
        pieces = self.pieces(where, 4, chips)
        return pieces[0]

    def _open(self, cell: Cell) -> Contents:
        opened = Contents(cell, layout_of(cell, self.mesh), self.frame)
        self._contents[cell.buffer_type][cell.address] = opened
        return opened

    def _outside(self, where: NocAddress, size: int, why: str) -> NocError:
        return NocError(
            f"NoC access of {size} B at {where!r} lies outside a buffer: {why}",
            expected="an access inside one live buffer",
            fix="Check page numbers, sizes and the runtime arguments.",
        )
