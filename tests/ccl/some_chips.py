"""Collectives again on some chips: what a test calls is repeated for one chip, one row and one column of its tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import torch

from ttmesh.base.errors import MeshError, ShapeError
from ttmesh.ccl.planning import collective_call
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.observer import Watcher
from ttmesh.tensor.spec.kind import kind_of
from ttmesh.tensor.tensor import Tensor

Coord = tuple[int, ...]
CALLS_EACH = 2  # of one collective along one axis of one mesh
BY_PLACE = ("ttnn.point_to_point", "ttnn.reduce_to_root")  # they name the chip that they write
_seen: Counter[tuple[Any, ...]] = Counter()


class SomeChips(Watcher):
    """Repeats collectives on parts of the mesh; a call that is refused there is fine, a wrong answer is not."""

    def __init__(self) -> None:
        self._busy = False

    def after_collective(
        self, name: str, decide: Callable[..., Any], tensors: Sequence[Tensor], options: dict[str, Any], result: Any
    ) -> None:
        """Repeat it, unless that was done often enough."""
        mesh = tensors[0].device()
        assert mesh is not None
        whole = all(tensor.kind.presence is None for tensor in tensors)
        place = (name, options.get("axis"), mesh.shape.to_tuple(), options.get("mode"))
        if self._busy or not whole or name in BY_PLACE or _seen[place] >= CALLS_EACH:
            return
        _seen[place] += 1
        self._busy = True
        try:
            for presence, lines in list_parts(mesh.shape.to_tuple()):
                Repeat(mesh, presence, name, decide, tensors, options, list_tensors(result)).check(lines)
        finally:
            self._busy = False


def list_tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [t for item in result for t in list_tensors(item)]


def list_parts(shape: tuple[int, ...]) -> Iterable[tuple[frozenset[Coord], int | None]]:
    """The last chip, and the last line of chips along each axis, with that axis."""
    coords = list(product(*map(range, shape)))
    yield frozenset({coords[-1]}), None
    for axis in range(len(shape)):
        fixed = [(i, n - 1) for i, n in enumerate(shape) if i != axis]
        line = frozenset(coord for coord in coords if all(coord[i] == at for i, at in fixed))
        if len(line) < len(coords):
            yield line, axis


class Repeat:
    """One collective on some chips of the tensors of a call."""

    def __init__(
        self,
        mesh: MeshDevice,
        presence: frozenset[Coord],
        name: str,
        decide: Callable[..., Any],
        tensors: Sequence[Tensor],
        options: dict[str, Any],
        results: list[Tensor],
    ) -> None:
        self.mesh, self.shape, self.presence = mesh, mesh.shape.to_tuple(), presence
        self.name, self.decide, self.options = name, decide, options
        self.tensors, self.results = tensors, results
        self.few = [Tensor.on_device(kind_of(t.spec, t.kind.topology, presence), t.buffer, mesh) for t in tensors]
        self.in_place = {id(t.buffer) for t in tensors} & {id(t.buffer) for t in results}

    def run(self, outputs: Sequence[Tensor] = ()) -> list[Tensor] | None:
        """Its results; None if it is refused on these chips."""
        try:
            return list_tensors(collective_call.run(self.name, self.decide, self.few, self.options, outputs))
        except (MeshError, ShapeError):
            return None

    def read(self, tensors: Sequence[Tensor]) -> list[torch.Tensor]:
        for queue in self.mesh.queues:
            queue.finish()
        cells = [tensor.buffer.cell for tensor in tensors]
        return [cell.read_bytes().expand(*self.shape, cell.size_bytes).clone() for cell in cells]

    def pick(self, contents: Sequence[torch.Tensor], present: bool = True) -> list[torch.Tensor]:
        """What the chips of the run hold, or all others."""
        coords = [c for c in product(*map(range, self.shape)) if (c in self.presence) == present]
        return [torch.stack([lanes[coord] for coord in coords]) for lanes in contents]

    def write(self, tensors: Sequence[Tensor], contents: Sequence[torch.Tensor]) -> None:
        for tensor, lanes in zip(tensors, contents, strict=True):
            tensor.buffer.cell.write_bytes(lanes)

    def check(self, line_axis: int | None) -> None:
        """Results on those chips alone, of their values alone; given outputs keep what other chips hold."""
        before, full = self.read(self.tensors), self.read(self.results)
        outputs = self.results if self.name.endswith("neighbor_pad_halo") else []  # it always writes into a buffer
        alone = self.run(outputs)
        if alone is None:
            return
        where = f"{self.name} on {sorted(self.presence)} of {self.shape}"
        assert all(t.coords() == sorted(self.presence) for t in alone), f"{where}: {[t.coords() for t in alone]}"
        values = self.pick(self.read(alone))
        if self.options.get("axis") == line_axis is not None and not self.in_place:
            assert all(map(torch.equal, values, self.pick(full))), f"{where}: other values than on the mesh"
        try:
            noise = [lanes.roll(1, -1).flip(0, 1) for lanes in before]
            for lanes, own in zip(noise, before, strict=True):
                for coord in self.presence:
                    lanes[coord] = own[coord]
            self.write(self.tensors, noise)
            again = self.run(outputs)
            assert again is not None
            same = map(torch.equal, values, self.pick(self.read(again)))
            assert all(same), f"{where}: the result depends on chips that do not hold the tensor"
            self.write(self.tensors, before)
            if self.run(self.results) is not None:
                kept = map(
                    torch.equal, self.pick(full, present=False), self.pick(self.read(self.results), present=False)
                )
                assert all(kept), f"{where}: given outputs changed on other chips"
        finally:
            self.write(self.tensors, before)
            self.write(self.results, full)
