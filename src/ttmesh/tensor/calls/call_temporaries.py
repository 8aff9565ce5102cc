"""Stages: the device programs that one call consists of, and the memory that they take and free."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ttmesh.base.dtypes import BufferType
from ttmesh.chip.free_list import BlockSteps
from ttmesh.chip.memory import MemoryMap
from ttmesh.tensor.distribution.allocate import Footprint, footprint_of
from ttmesh.tensor.spec.tensor_spec import TensorSpec


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor inside a composite call: its spec, and the allocation that holds it (None: an argument's memory)."""

    spec: TensorSpec
    allocation: int | None = None


@dataclass(frozen=True)
class MemorySchedule:
    """Allocations of a call in order.

    steps: n takes the allocation n, ~n gives it back. results: the allocation of each result. kept: the program that an
    allocation belongs to, and which of its allocations it is: the program keeps it as long as it is cached, and only the
    call that compiles it takes it.
    """

    steps: tuple[int, ...]
    rooms: tuple[Footprint, ...]
    results: tuple[int, ...]
    kept: Mapping[int, tuple[Hashable, int]]

    @cached_property
    def result_numbers(self) -> Mapping[int, int]:
        """Which result each allocation holds, for those that hold one."""
        return {allocation: i for i, allocation in enumerate(self.results)}

    @cached_property
    def repeated_steps(self) -> tuple[int, ...]:
        """The steps of a call whose programs are compiled."""
        return tuple(step for step in self.steps if step not in self.kept)

    @cached_property
    def dram_steps(self) -> BlockSteps | None:
        """The steps of a repeated call with one result, where all memory it takes and frees is in DRAM."""
        steps, results = self.repeated_steps, self.results
        taken = {step for step in steps if step >= 0}
        if len(results) != 1 or any(self.rooms[n].buffer_type is not BufferType.DRAM for n in taken):
            return None
        if taken - {~step for step in steps if step < 0} != {results[0]}:
            return None
        return BlockSteps(steps, tuple(room.bank_bytes for room in self.rooms), results[0])


class Composition:
    """The device programs of one composite call, written down over specs while TT-NN's composition is followed."""

    def __init__(self) -> None:
        self.programs: list[Hashable] = []
        self._steps: list[int] = []
        self._specs: list[TensorSpec] = []
        self._kept: dict[int, tuple[Hashable, int]] = {}

    def run(self, program: str, spec: TensorSpec, *inputs: PlannedTensor, options: Hashable = ()) -> PlannedTensor:
        """Launch a program that makes a tensor of this spec; programs of equal inputs, outputs and options are one."""
        self.programs.append((program, tuple(stage.spec for stage in inputs), spec, options))
        return self.allocate(spec)

    def launch(self, key: Hashable) -> None:
        """Launch a program that allocates nothing."""
        self.programs.append(key)

    def allocate(self, spec: TensorSpec) -> PlannedTensor:
        """Take memory without a program."""
        self._steps.append(len(self._specs))
        self._specs.append(spec)
        return PlannedTensor(spec, len(self._specs) - 1)

    def keep(self, spec: TensorSpec) -> None:
        """Memory that the last program takes when it is compiled, and keeps."""
        program = self.programs[-1]
        self._kept[len(self._specs)] = (program, sum(holder == program for holder, _ in self._kept.values()))
        self.allocate(spec)

    def view(self, stage: PlannedTensor, spec: TensorSpec) -> PlannedTensor:
        """The same memory seen with another spec."""
        return PlannedTensor(spec, stage.allocation)

    def free(self, stage: PlannedTensor) -> None:
        """Give a tensor's memory back; an argument's stays, and a second call changes nothing."""
        number = stage.allocation
        if number is not None and ~number not in self._steps:
            self._steps.append(~number)

    def include(self, other: Composition, result: PlannedTensor) -> PlannedTensor:
        """Add the programs and the memory of another composition; its result."""
        offset = len(self._specs)
        self.programs += other.programs
        self._specs += other._specs
        self._steps += [step + offset if step >= 0 else ~(~step + offset) for step in other._steps]
        self._kept.update({number + offset: holder for number, holder in other._kept.items()})
        number = result.allocation
        return PlannedTensor(result.spec, None if number is None else number + offset)

    def drop(self, stage: PlannedTensor) -> None:
        """Take back an allocation: the tensor is written into memory that is there."""
        if stage.allocation is not None:
            self._steps.remove(stage.allocation)

    def replace(self, old: PlannedTensor, new: PlannedTensor) -> PlannedTensor:
        """The new tensor; the old one's memory is freed unless both share it."""
        if old.allocation != new.allocation:
            self.free(old)
        return new

    def schedule(self, results: Sequence[PlannedTensor], memory_map: MemoryMap) -> MemorySchedule | None:
        """What a plan carries out; None where one allocation per result, in order, is all there is."""
        places = tuple(stage.allocation for stage in results if stage.allocation is not None)
        assert len(places) == len(results), "a composite call allocates its results"
        if self._steps == list(range(len(results))) and places == tuple(self._steps):
            return None
        rooms = tuple(footprint_of(spec, memory_map) for spec in self._specs)
        return MemorySchedule(tuple(self._steps), rooms, places, self._kept)
