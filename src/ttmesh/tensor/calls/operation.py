"""What launch needs to know of an operation, and a call of it as the operation's rules see it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ttmesh.base.dtypes import Arch, DataType
from ttmesh.chip.memory import MemoryMap
from ttmesh.chip.numerics.fpu_config import FpuConfig
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.tensor.calls.call_temporaries import Composition, PlannedTensor
from ttmesh.tensor.calls.lane_calls import Arguments, Lane
from ttmesh.tensor.spec.tensor_spec import TensorSpec
from ttmesh.tensor.spec.tensor_topology import TensorTopology
from ttmesh.tensor.tensor import Tensor


@dataclass(frozen=True)
class Call:
    """One call of an operation as its rules get it: arguments by name, tensors included."""

    name: str
    mesh: MeshDevice
    arguments: Arguments
    tensors: tuple[Tensor, ...]
    outputs: tuple[Tensor | None, ...] = ()  # tensors of the caller to write results into, by result

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """The specs of the tensor arguments, in order."""
        return tuple(tensor.kind.spec for tensor in self.tensors)

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)


SpecRule = Callable[[Call, Sequence[tuple[tuple[int, ...], torch.dtype]]], Sequence[TensorSpec]]
StageRule = Callable[[Call, Sequence[TensorSpec]], tuple[Composition, Sequence[PlannedTensor]] | None]


@dataclass(frozen=True)
class Case:
    """What a plan knows of its calls: everything but the values of tensors and of runtime arguments."""

    arguments: Arguments  # None in place of a tensor
    tensors: Sequence[str]  # the names of the tensor arguments
    specs: Sequence[TensorSpec]
    results: Sequence[TensorSpec]
    lane_axes: int
    options: Arguments  # of the whole call, also those that the lane function does not take
    arch: Arch
    memory: MemoryMap

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name] if name in self.arguments else self.options.get(name)

    def equal_ranks(self) -> bool:
        """Whether all tensors have the same rank."""
        return len({len(spec.shape) for spec in self.specs}) == 1

    def one_format(self, *formats: DataType) -> bool:
        """Whether all tensors and results have the same of these formats."""
        found = {spec.dtype for spec in (*self.specs, *self.results)}
        return len(found) == 1 and found <= set(formats)


Specialise = Callable[[Case], Lane | None]


@dataclass(frozen=True)
class Operation:
    """What launch needs to know of an operation.

    lane: computes on lanes; gets the arguments its signature names, tensors as torch lanes, plus what it asks for of
      `lane_axes`, `specs` (of the inputs) and `torch_device`; returns a tensor, or a list or tuple that may hold None.
    out: output specs from the call and the (local shape, torch dtype) pairs that the lane function gave on meta.
    check: raises for a call that TT-NN would refuse.
    topology: output topology; by default TT-NN's merge.
    runtime: arguments that change values but never specs; they are not part of the key.
    recheck: `check` looks at values of runtime arguments, so it is asked at every call and calls have no fast path; a
      function says for which arguments.
    programs: the program-cache keys of the device programs that TT-NN launches for one call, one each.
    scratch: bytes of circular buffers per core.
    stages: the programs that a call comes to where they are several or allocate more than the results; the stages of
      the results, and the composition that they stand in.
    writes: the tensor argument that the result is written into (in-place operations), by name.
    writes_if: which calls write into it, where not all do; the others have a result of their own.
    outputs: the arguments that name tensors to write results into, one per result, where they are not `OUTPUTS`.
    host: whether it takes host tensors too, and gives host tensors then.
    specialise: a function of the tensors and runtime values alone, in the order that the lane function takes them, with
      everything decided that the other arguments and the specs decide; None where there is none. Plans keep it.
    alias: the shape of the result where TT-NN hands the first tensor's own memory back, else None.
    min_rank: how many dims of the first tensor the lane function counts on: with fewer it would reach the mesh axes.
    fpu: how the FPU is set for a call, where TTMESH_NUMERICS is not ideal; None where it has no part in it.
    in_place: the lane function changes the values of `writes` themselves (and rounds them itself) instead of making
      new ones: a kv cache is not copied.
    """

    name: str
    lane: Lane
    out: SpecRule
    check: Callable[[Call], None] | None = None
    topology: Callable[[Call], TensorTopology] | None = None
    runtime: frozenset[str] = frozenset()
    programs: Callable[[Call], tuple[Hashable, ...]] | None = None
    scratch: Callable[[Call], int] | None = None
    stages: StageRule | None = None
    writes: str | None = None
    writes_if: Callable[[Arguments], bool] | None = None
    outputs: tuple[str, ...] | None = None
    host: bool = False
    in_place: bool = False
    specialise: Specialise | None = None
    recheck: bool | Callable[[Arguments], bool] = False
    alias: Callable[[Call], Sequence[int] | None] | None = None
    min_rank: int = 0
    fpu: Callable[[Case], FpuConfig | None] | None = None
    lane_arguments: frozenset[str] = field(default_factory=frozenset)
