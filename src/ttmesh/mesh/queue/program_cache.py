"""The device programs that TT-NN would have compiled, counted.

Their keys are made by `programs=` and `stages=` of an operation, else the key of its plan is used (tensor/calls/plan_keys).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from ttmesh.base.errors import MeshError
from ttmesh.mesh.allocation.heap import Buffer


class ProgramCache:
    """The programs of one mesh, counted as TT-NN's cache counts its entries."""

    __slots__ = ("_programs", "buffers", "enabled", "generation", "misses_allowed")

    def __init__(self) -> None:
        self._programs: set[Hashable] = set()
        self.buffers: dict[Hashable, Buffer] = {}  # memory that programs keep while they are cached
        self.enabled = True
        self.misses_allowed = True
        self.generation = 0  # a plan counted under another generation must be counted again

    def compile(self, name: str, programs: Iterable[Hashable]) -> None:
        """Count the programs of a plan that is about to run for the first time since the cache was cleared."""
        new = [program for program in programs if program not in self._programs]
        if new and not self.misses_allowed:
            raise MeshError(
                f'Device operation "{name}": program cache miss occurred, but cache misses are forbidden',
                expected="an operation that ran before with the same shapes, formats and options",
                fix="Run it once before set_program_cache_misses_allowed(False).",
            )
        if self.enabled:
            self._programs.update(new)

    def __contains__(self, program: Hashable) -> bool:
        return program in self._programs

    def count(self) -> int:
        """How many device programs are cached."""
        return len(self._programs)

    def clear(self) -> None:
        """Forget which programs were compiled."""
        self._programs.clear()
        self.buffers.clear()
        self.generation += 1
