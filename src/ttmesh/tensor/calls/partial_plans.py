"""Plans of calls that run on some chips of their mesh only: the others keep what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ttmesh.chip.cells import Cell
from ttmesh.mesh.device.mesh_device import MeshDevice
from ttmesh.mesh.queue.command_queue import Body
from ttmesh.mesh.queue.partial_writes import restrict_to_chips
from ttmesh.tensor.calls.plan import Plan
from ttmesh.tensor.distribution.lane_transfers import present_chips
from ttmesh.tensor.spec.kind import Kind, Presence, kind_of
from ttmesh.tensor.tensor import Tensor


def presence_of_run(tensors: Sequence[Tensor | None]) -> Presence | None:
    """Where TT-NN launches a program: the coordinates of the first tensor with the fewest; None for the whole mesh."""
    partial = [t.kind.presence for t in tensors if t is not None and t.kind.presence is not None]
    return min(partial, key=len, default=None)


def bodies_on(
    make_body: Callable[..., Body],
    mesh: MeshDevice,
    presence: Presence,
    kinds: Sequence[Kind],
    outputs: Sequence[Tensor | None],
) -> Callable[..., Body]:
    """The same bodies, writing the chips at these coordinates alone."""
    chips, shape = present_chips(mesh, presence), mesh.lane_shape  # not the mesh: it holds the plan
    given = {i for i, tensor in enumerate(outputs) if tensor is not None}
    unseen = [i for i, kind in enumerate(kinds) if kind.presence is not None and i not in given]
    return lambda *values: restrict_to_chips(make_body(*values), chips, shape, unseen)


class PartialPlan(Plan):
    """A plan whose bodies write some chips only."""

    __slots__ = ()

    def run(self, mesh: MeshDevice, reads: Sequence[Cell], body: Body, outputs: Sequence[Tensor | None] = ()) -> Any:
        """The same; a caller's tensor that is a result shows only the chips where the program ran."""
        shown = [
            None if tensor is None else _narrow(tensor, kind.presence, mesh)
            for tensor, kind in zip(outputs, self.kinds, strict=False)
        ]
        return super().run(mesh, reads, body, shown)


def _narrow(tensor: Tensor, presence: Presence | None, mesh: MeshDevice) -> Tensor:
    kind = tensor.kind
    if presence is None or kind.presence == presence:
        return tensor
    common = presence if kind.presence is None else presence & kind.presence
    return Tensor.on_device(kind_of(kind.spec, kind.topology, common), tensor.buffer, mesh)
