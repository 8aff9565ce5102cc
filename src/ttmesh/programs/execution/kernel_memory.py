"""All memory that kernels see while a workload runs, found by address; committed at the end."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from ttmesh.base.cores import CoreCoord
from ttmesh.base.dtypes import BufferType
from ttmesh.base.geometry import MeshCoordinate, MeshCoordinateRange
from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.programs.buffers.addresses import NocAddress
from ttmesh.programs.buffers.mesh_buffer import find_layout
from ttmesh.programs.circular_buffers import BufferPlacement
from ttmesh.programs.execution.contents import (
    Chips,
    Contents,
    CoreMemory,
    Diverged,
    Frame,
    NeedsOtherRank,
    NocError,
    Owner,
    Piece,
    touch,
)
from ttmesh.programs.execution.ordering import Actor, Clock, Word
from ttmesh.programs.execution.scheduler import Scheduler, Task


class Memory:
    """All memory of one run of a workload."""

    def __init__(self, mesh: MeshDevice, cells: Iterable[Cell], scheduler: Scheduler, frame: Frame) -> None:
        self.mesh, self.scheduler, self.frame = mesh, scheduler, frame
        self.columns = mesh.compute_with_storage_grid_size().x
        self._contents: dict[BufferType, dict[int, Contents]] = {kind: {} for kind in BufferType}
        self._waiters: dict[tuple[Chips, Contents, int], list[Task]] = {}
        self._loads: dict[tuple[int, int], int] = {}  # bytes over links, by (from, to)
        self._words: dict[tuple[Chips, int, int], Word] = {}  # what was used as a semaphore, by bank and address
        self._elsewhere: dict[MeshCoordinate, Chips] = {}  # chips that run nothing and are written to
        self._ids = itertools.count()
        self._actors: list[Actor] = []
        self.shadowed: set[Contents] = (
            set()
        )  # buffers whose memory circular buffers use: cores hold their bytes during the run
        self._named: dict[BufferType, list[Cell]] = {kind: [] for kind in BufferType}
        for cell in cells:
            self._named[cell.buffer_type].append(cell)

    def commit(self) -> None:
        """Write the results of the run to the cells, and count the bytes that crossed links."""
        for contents in self._contents.values():
            for one in contents.values():
                one.commit()
        if self._loads:
            self.mesh.traffic.counters.add(self._loads)

    def take(
        self, backed: Iterable[BufferPlacement], core: CoreCoord, chips: Chips, data: torch.Tensor, start: int
    ) -> None:
        """Fill a core's circular buffers that are backed by L1 buffers from the core's shards."""
        for buffer in backed:
            at = buffer.address - start
            for owner, offset, size in self._shard(buffer, core, chips):
                data.narrow(-1, at, size).copy_(owner.view(chips).narrow(-1, offset, size))
                at += size

    def put_back(self, backed: Iterable[BufferPlacement], core: CoreCoord, chips: Chips) -> None:
        """Copy those circular buffers back to the core's shards."""
        l1 = chips.cores[core.y * self.columns + core.x]
        for buffer in backed:
            at = buffer.address - l1.start
            for owner, offset, size in self._shard(buffer, core, chips):
                now = l1.bytes.narrow(-1, at, size)
                if not torch.equal(owner.view(chips).narrow(-1, offset, size).expand_as(now), now):
                    owner.writable(chips).narrow(-1, offset, size).copy_(now)
                at += size

    def _shard(self, buffer: BufferPlacement, core: CoreCoord, chips: Chips) -> list[Piece]:
        where = NocAddress(BufferType.L1, core.y * self.columns + core.x, buffer.address)
        pieces = self._in_buffers(where, buffer.size_bytes)
        self.shadowed.update(owner for owner, _, _ in pieces if isinstance(owner, Contents))
        return pieces

    def new_id(self) -> int:
        """A new id of an actor."""
        return next(self._ids)

    def new_actor(self, name: str) -> Actor:
        """A new actor: a kernel on a core."""
        self._actors.append(Actor(name, self.new_id()))
        return self._actors[-1]

    def learn_everything(self, actor: Actor) -> None:
        """Order a kernel after everything so far: what its wait depended on is not known."""
        for other in self._actors:
            actor.learn(other.clock)

    @property
    def used_links(self) -> bool:
        """Whether any bytes went over a link."""
        return bool(self._loads)

    def count_crossing(self, hop: tuple[int, int], size: int) -> None:
        """Count bytes that go over a link."""
        self._loads[hop] = self._loads.get(hop, 0) + size

    def find(self, buffer_type: BufferType, address: int) -> Contents | None:
        """The buffer that contains an address."""
        exact = self._contents[buffer_type].get(address)
        if exact is not None:
            return exact
        inside = (c for c in self._contents[buffer_type].values() if 0 <= address - c.cell.address < c.cell.bank_bytes)
        found = next(inside, None)
        if found is None:
            everything = list(
                self.mesh.heap.live[buffer_type].values()
            )  # the host may allocate while a worker runs this
            known = (*self._named[buffer_type], *everything)
            cell = next((c for c in known if 0 <= address - c.address < c.bank_bytes), None)
            found = self._open(cell) if cell is not None else None
        if found is None and buffer_type is BufferType.L1:
            return self.find(BufferType.L1_SMALL, address)
        return found

    def pieces(self, where: NocAddress, size: int, chips: Chips) -> list[Piece]:
        """The bytes at an address, split by pages."""
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
            length = min(size - done, layout.page_bytes - within)
            found.append((contents, page * layout.page_bytes + within, length))
            done += length
            if done < size and layout.slot_bytes > layout.page_bytes:
                raise self._outside(where, size, f"pages of {layout.page_bytes} B have padding between them")
        return found

    def copy(self, source: Piece, of: Chips, target: Owner, offset: int, on: Chips) -> None:
        """Copy bytes now."""
        owner, start, size = source
        into = target.writable(on)  # first: a buffer copied onto itself must be read from its new bytes
        into.narrow(-1, offset, size).copy_(owner.view(of).narrow(-1, start, size))
        if self._waiters and isinstance(target, Contents):
            self._touch(target)

    def word(self, chips: Chips, where: NocAddress) -> Word:
        """The semaphore at an L1 address."""
        key = chips, where.bank, where.address
        found = self._words.get(key)
        if found is None:
            found = self._words[key] = Word(self.load(chips, where))
        return found

    def change_semaphore(
        self, chips: Chips, where: NocAddress, value: int, actor: Actor, released: Clock, *, increment: bool
    ) -> None:
        """Set a semaphore or add to it, with the clock that waiting kernels get."""
        word, site = self.word(chips, where), actor.site()
        if increment:
            value = (self.load(chips, where) + value) & 0xFFFFFFFF
            word.add(value, actor, released, site)
        else:
            word.set(value & 0xFFFFFFFF, actor, released, site)
        self.store(chips, where, value)

    def touch_word(self, chips: Chips, where: NocAddress, actor: Actor, *, writes: bool) -> Word | None:
        """Record an access to a 32-bit number in L1; returns its semaphore, or None where it is ordinary data."""
        core = chips.cores.get(where.bank)
        if (core is not None and where.address in core.semaphores) or (chips, where.bank, where.address) in self._words:
            return self.word(chips, where)
        owner, offset, _ = self._word(chips, where)
        touch(owner, offset, 4, chips, actor, writes=writes)
        return None

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
        """Write a 32-bit number at an L1 address and wake the kernels that wait for it."""
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
        """The kernels that sleep until the number at an L1 address changes."""
        core = chips.cores.get(where.bank)
        if core is not None and where.address in core.semaphores:
            return core.waiters.setdefault(where.address, [])
        owner, offset, _ = self._word(chips, where)
        if isinstance(owner, CoreMemory):
            raise NocError(
                f"a kernel waits for {where!r}, which is in a circular buffer",
                expected="a semaphore",
                fix="Create one with create_semaphore or create_global_semaphore.",
            )
        return self._waiters.setdefault((chips, owner, offset), [])

    def chips_at(self, coord: MeshCoordinate, running: Iterable[Chips]) -> Chips:
        """The chip at a coordinate, with its program's L1 when it runs one of this workload."""
        if self.frame.gathers is None and not self.mesh.is_local(coord):
            raise NeedsOtherRank
        box = MeshCoordinateRange(coord)
        for chips in running:
            if chips.box == box:
                return chips
        return self._elsewhere.setdefault(coord, Chips(box, self.frame, (1,) * coord.dims()))

    def _touch(self, contents: Contents) -> None:
        for (_, owner, _), waiters in self._waiters.items():
            if owner is contents and waiters:
                self.scheduler.wake(waiters)

    def _word(self, chips: Chips, where: NocAddress) -> Piece:
        pieces = self.pieces(where, 4, chips)
        return pieces[0]

    def _open(self, cell: Cell) -> Contents:
        opened = Contents(cell, find_layout(cell, self.mesh), self.frame)
        self._contents[cell.buffer_type][cell.address] = opened
        return opened

    def _outside(self, where: NocAddress, size: int, why: str) -> NocError:
        return NocError(
            f"NoC access of {size} B at {where!r} lies outside a buffer: {why}",
            expected="an access inside one live buffer",
            fix="Check page numbers, sizes and the runtime arguments.",
        )
