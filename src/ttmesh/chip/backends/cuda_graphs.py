"""Trace replays as CUDA graphs: captured at the second replay, launched as one from then on.

A graph reads and writes fixed memory, while the contents of a cell are replaced by other tensors. So before a launch:
- an input whose tensor changed since the capture is copied into the memory that the graph reads (after the first change
  it has memory of its own for that, and the graph is captured again); what the graph itself puts into an input's cell, as
  a training step its weights, is copied there by the graph;
- where another cell or tensor holds memory that the graph would overwrite, this replay runs command by command instead.
What cannot be captured (random numbers with a generator, reading a value back, other ranks) stays as it was.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import torch

from ttmesh.chip.backends.backend_protocol import Step
from ttmesh.chip.backends.index_guard import IndexGuard, StickyUses
from ttmesh.chip.cells import Cell, Chips, Format

log = logging.getLogger("ttmesh.trace")
MOST_CAPTURES = 4  # inputs may turn out to change one after the other; then commands run one by one for good


class _Input(NamedTuple):
    """What the graph reads for a cell; `private` memory may be overwritten with what the cell holds by then."""

    cell: Cell
    tensor: torch.Tensor
    form: Format | None
    private: bool
    always: bool  # the graph replaces the cell's contents itself: copy them in before every launch


class _Output(NamedTuple):
    """What the graph writes for a cell."""

    cell: Cell
    tensor: torch.Tensor
    form: Format | None


class _InPlace(NamedTuple):
    """A cell whose memory the graph updates. Its tensor is not kept: a reference to it would make the next update
    outside of the graph a copy."""

    cell: Cell
    address: int


class _ObservedCell(Cell):
    """A cell that notes when its old contents are used; cells are of this class during one replay."""

    __slots__ = ()
    used: ClassVar[set[int]] = set()
    taken: ClassVar[set[int]] = set()

    def read(self, wanted: Format) -> torch.Tensor:
        """Read, noted."""
        self.used.add(id(self))
        return super().read(wanted)

    def read_bytes(self) -> torch.Tensor:
        """Read as bytes, noted."""
        self.used.add(id(self))
        return super().read_bytes()

    def take_out(self, form: Format) -> torch.Tensor:
        """Take out, noted."""
        self.taken.add(id(self))
        self.__class__ = Cell  # type: ignore[assignment]  # it reads by itself
        return self.take_out(form)

    def copy(self) -> Cell:
        """Copy, noted."""
        self.used.add(id(self))
        return super().copy()

    def merge(self, result: Cell, chips: Chips, lane_shape: tuple[int, ...]) -> None:
        """Merge, noted."""
        self.used.add(id(self))
        super().merge(result, chips, lane_shape)


class TraceReplay:
    """The commands of a trace segment, run as a CUDA graph where that is safe."""

    def __init__(self, steps: Sequence[Step], is_live: Callable[[Cell], bool], guard: IndexGuard) -> None:
        self._steps = list(steps)
        self._is_live, self._guard = is_live, guard
        self._cells = {id(cell): cell for _, reads, writes in steps for cell in (*reads, *writes)}
        self._written = {id(cell) for _, _, writes in steps for cell in writes}
        self._seen: dict[int, torch.Tensor | None] | None = None  # read cell -> what the first replay found in it
        self._taken: set[int] = set()  # cells that a command updates in place
        self._private: set[int] = set()  # read cells that need memory of their own
        is_host_work = any(not reads and not writes for _, reads, writes in steps)  # a launch would leave it out
        self._captures = MOST_CAPTURES + 1 if is_host_work else 0
        self._forget_graph()

    def __call__(self) -> None:
        """Replay once."""
        if self._captures > MOST_CAPTURES:
            self._run_steps()
        elif self._seen is None:
            self._run_first()
        elif self._graph is None:
            self._private |= {key for key, tensor in self._seen.items() if self._cells[key].values is not tensor}
            self._seen = dict.fromkeys(self._seen)
            self._capture()
        elif changed := self._find_changed():
            self._private |= changed
            self._capture()
        elif self._is_held():
            self._run_steps()
        else:
            self._copy_inputs()
            self._launch()

    def _forget_graph(self) -> None:
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[_Input] = []
        self._copied: dict[int, torch.Tensor | None] = {}
        self._returned: dict[int, torch.Tensor] = {}  # input -> the result that a launch copies to where it reads
        self._outputs: list[_Output] = []
        self._in_place: list[_InPlace] = []
        self._reachable: list[torch.Tensor] = []  # what the graph overwrites and a program can get hold of
        self._holders: list[tuple[int, int]] = []  # who held those, and what is updated in place, after the capture
        self._sticky: StickyUses | None = None

    def _run_steps(self) -> None:
        for body, reads, writes in self._steps:
            body(reads, writes)

    def _run_first(self) -> None:
        """Command by command, to see which cells are read before they are written, and which are updated in place."""
        self._seen, written = {}, set[int]()
        for body, reads, writes in self._steps:
            fresh = [cell for cell in writes if id(cell) not in written]
            for cell in reads:
                if id(cell) not in written:
                    self._seen.setdefault(id(cell), cell.values)
            for cell in fresh:
                cell.__class__ = _ObservedCell
            _ObservedCell.used.clear()
            _ObservedCell.taken.clear()
            try:
                body(reads, writes)
            finally:
                for cell in fresh:
                    cell.__class__ = Cell
            for cell in fresh:
                if id(cell) in _ObservedCell.used:
                    self._seen.setdefault(id(cell), None)
                    self._private.add(id(cell))
                elif id(cell) in _ObservedCell.taken:
                    self._taken.add(id(cell))
                written.add(id(cell))

    def _capture(self) -> None:
        """Capture and launch; what cannot be captured runs command by command from now on."""
        self._captures += 1
        self._forget_graph()
        uses = self._try_capture() if self._captures <= MOST_CAPTURES else None
        if uses is None:
            self._captures = MOST_CAPTURES + 1
            self._run_steps()
            return
        assert self._seen is not None, "the first replay looked"
        for key in self._seen:
            cell = self._cells[key]
            if key in self._taken:
                continue  # read and updated in place: the same memory, which nothing else may hold
            assert cell.values is not None, "the trial looked"
            private, held = key in self._private, cell.values
            if private:  # no cell but results of the graph may hold this memory: it is overwritten
                self._copied[len(self._inputs)] = held
                cell.values = held.clone()
            self._inputs.append(_Input(cell, cell.values, cell.format, private, key in self._written))
        addresses = {key: self._address(key) for key in self._taken}
        sticky = self._guard.make_sticky(uses)
        graph = torch.cuda.CUDAGraph()
        with capture_graph(graph), self._guard.capture(sticky):
            self._run_steps()
            self._return_results()
        self._graph, self._sticky = graph, sticky
        for i, values in list(self._copied.items()):
            if self._inputs[i].always:
                del self._copied[i]
            else:
                self._inputs[i].cell.values = values
        for key in self._written:
            cell = self._cells[key]
            if key in self._taken and self._address(key) == addresses[key]:
                self._in_place.append(_InPlace(cell, addresses[key]))
            elif cell.values is not None:
                self._outputs.append(_Output(cell, cell.values, cell.format))
        if len(self._in_place) != len(self._taken):  # another one is held: it was copied instead of updated in place
            self._captures = MOST_CAPTURES + 1
        self._reachable = [output.tensor for output in self._outputs if self._is_live(output.cell)]
        self._launch()
        self._holders = self._count_holders()

    def _return_results(self) -> None:
        """Results that the next launch reads are copied to where it reads them; other results there are moved."""
        replaced = [(i, entry) for i, entry in enumerate(self._inputs) if entry.always and entry.private]
        memory = {_find_storage(entry.tensor) for _, entry in replaced}
        for key in self._written:
            values = self._cells[key].values
            if values is not None and _find_storage(values) in memory:
                self._cells[key].values = values.clone()
        for i, (cell, tensor, _, _, _) in replaced:
            values = cell.values
            if values is not None and values.shape == tensor.shape and values.dtype is tensor.dtype:
                self._returned[i] = values
        if self._returned:
            torch._foreach_copy_([self._inputs[i].tensor for i in self._returned], list(self._returned.values()))

    def _try_capture(self) -> int | None:
        """Whether these commands can be captured: how many uses of indices they have, or None. Nothing is changed."""
        assert self._seen is not None, "the first replay looked"
        if any(self._cells[key].values is None for key in self._seen):
            return None  # raw bytes, or memory that was never written
        held = [(cell, cell.values, cell.format, cell.raw) for cell in self._cells.values()]
        self._guard.check()
        trial = self._guard.make_sticky(0)
        try:
            with capture_graph(torch.cuda.CUDAGraph()), self._guard.capture(trial):
                self._run_steps()
        except (
            Exception
        ) as error:  # what a command cannot do in a capture, or raises anyway: again when it runs by itself
            log.info("a trace of %d commands is no CUDA graph: %s", len(self._steps), error)
            return None
        else:
            return len(trial.uses)
        finally:
            for cell, values, form, raw in held:
                cell.values, cell.format, cell.raw = values, form, raw

    def _address(self, key: int) -> int:
        values = self._cells[key].values
        return 0 if values is None else values.data_ptr()

    def _find_changed(self) -> set[int]:
        """Cells that hold another tensor than the graph reads, which has no memory of its own for them yet."""
        return {
            id(cell)
            for cell, tensor, form, private, _ in self._inputs
            if (cell.values is not tensor and not private)
            or cell.values is None
            or (cell.format is not form and cell.format != form)
            or cell.values.shape != tensor.shape
        }

    def _is_held(self) -> bool:
        """Whether anything holds memory that a launch would overwrite."""
        moved = any(cell.values is None or cell.values.data_ptr() != address for cell, address in self._in_place)
        return moved or self._count_holders() != self._holders

    def _count_holders(self) -> list[tuple[int, int]]:
        counts = [_count_tensor_holders(tensor) for tensor in self._reachable]
        for cell, _ in self._in_place:
            assert cell.values is not None, "a cell that is updated in place holds values"
            counts.append(_count_tensor_holders(cell.values))
        return counts

    def _copy_inputs(self) -> None:
        """Bring what cells hold now to where the graph reads it."""
        for i, (cell, tensor, _, private, always) in enumerate(self._inputs):
            values = cell.values
            if always and values is self._returned.get(i):
                continue
            if private and values is not tensor and (always or self._copied.get(i) is not values):
                assert values is not None, "inputs were looked at"
                tensor.copy_(values)
                if not always:  # those are the graph's own results: holding one would look like another's reference
                    self._copied[i] = values

    def _launch(self) -> None:
        assert self._graph is not None, "captured"
        self._graph.replay()
        for cell, tensor, form in self._outputs:
            cell.values, cell.format, cell.raw = tensor, form, None
        if self._sticky is not None:
            self._guard.add_sticky(self._sticky)


@contextlib.contextmanager
def capture_graph(graph: torch.cuda.CUDAGraph) -> Iterator[None]:
    """Capture what runs inside; whether that fails or not, the thread and the allocator are then as they were.

    After a capture that CUDA made invalid, torch leaves the thread on the capture's stream: what it enqueues from then on
    is not ordered with the work of other threads. It also goes on to count the capture's memory as in use, and its own
    random generator stays in the capture until one ends well.
    """
    pool = torch.cuda.graph_pool_handle()
    capture = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    with torch.cuda.stream(torch.cuda.current_stream()):  # its end restores the stream in any case
        capture.__enter__()
        whole = False
        try:
            yield
            whole = True
        finally:
            try:
                capture.__exit__(None, None, None)
            except RuntimeError:
                device = torch.cuda.current_device()
                torch._C._cuda_endAllocateToPool(device, pool)  # type: ignore[attr-defined]
                torch._C._cuda_releasePool(device, pool)  # type: ignore[attr-defined]
                with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
                    torch.zeros(1, device="cuda", dtype=torch.float32)
                if whole:  # else what was raised inside says why
                    raise


def _find_storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _count_tensor_holders(tensor: torch.Tensor) -> tuple[int, int]:
    """Who holds a tensor, and who its memory."""
    uses: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)  # type: ignore[attr-defined]
    return sys.getrefcount(tensor), uses
