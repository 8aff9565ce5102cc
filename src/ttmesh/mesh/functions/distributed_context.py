"""TT-NN's `distributed_context_*` functions: the ranks of this program; a single process is rank 0 of 1."""

from __future__ import annotations

from ttmesh.base import settings
from ttmesh.base.errors import MeshError
from ttmesh.base.signals import signals
from ttmesh.fabric.messaging.engines import bindings, choose_engine, list_context_ranks, world
from ttmesh.fabric.messaging.transport import Transport
from ttmesh.mesh.device.mesh_device import list_open_meshes

_initialised = False
_split: Transport | None = None  # the group of this sub-context's ranks, created on first use


class ContextError(MeshError, IndexError):
    """A rank or sub-context that this job does not have; TT-NN raises IndexError."""


class Rank(int):
    """The number of a rank."""

    def __repr__(self) -> str:
        return f"Rank({int(self)})"


class Size(int):
    """A number of ranks."""

    def __repr__(self) -> str:
        return f"Size({int(self)})"


def using_distributed_env() -> bool:
    """Whether a launcher (mpirun, torchrun, ttmesh launch) started this process as one of several ranks."""
    return choose_engine() is not None and world_size() > 1


def init_distributed_context() -> None:
    """Connect to the other ranks; a second call does nothing."""
    global _initialised
    world()
    _initialised = True


def distributed_context_is_initialized() -> bool:
    """Whether this process is connected to the other ranks, or was launched to be."""
    return _initialised or choose_engine() is not None


def world_rank() -> int:
    """This process's number among all ranks."""
    transport = world()
    return 0 if transport is None else transport.rank


def world_size() -> int:
    """How many ranks there are."""
    transport = world()
    return 1 if transport is None else transport.size


def distributed_context_get_rank() -> Rank:
    """This process's rank in its context: among all, unless tt-run split the job."""
    return Rank(list_context_ranks().index(world_rank()))


def distributed_context_get_size() -> Size:
    """How many ranks this context has."""
    return Size(len(list_context_ranks()))


def distributed_context_barrier() -> None:
    """Return when every rank has called it; ranks that present one mesh compare their allocations on it."""
    transport = _find_context()
    if transport is None:
        return
    for mesh in list_open_meshes():
        if mesh.rank_block is not None and mesh.rank_block.position is not None and mesh.heap.digest is not None:
            mesh.heap.digest.compare(mesh.rank_block.host, repr(mesh))
    transport.barrier()


def distributed_context_allgather_int(value: int) -> list[int]:
    """Every rank's number, in rank order."""
    transport = _find_context()
    if transport is None:
        return [int(value)]
    return [row[0] for row in transport.all_gather_ints([int(value)])]


def distributed_context_send_bytes(data: bytes, dest: int, tag: int = 0) -> None:
    """Send bytes to a rank that receives as many."""
    _require_context("send").send_bytes(data, int(dest), tag=tag)


def distributed_context_recv_bytes(size: int, source: int, tag: int = 0) -> bytes:
    """Receive this many bytes from a rank."""
    return _require_context("receive").recv_bytes(size, int(source), tag=tag)


def distributed_context_world_rank() -> Rank:
    """This process's rank among all, whatever its context."""
    return Rank(world_rank())


def distributed_context_world_size() -> Size:
    """How many ranks there are in all contexts."""
    return Size(world_size())


def distributed_context_subcontext_id() -> int | None:
    """The number of this rank's context; None where the job is not split."""
    return settings.get_int("TT_RUN_SUBCONTEXT_ID")


def distributed_context_subcontext_count() -> int:
    """How many contexts there are: one where the job is not split."""
    return len(distributed_context_subcontext_sizes())


def distributed_context_subcontext_sizes() -> list[int]:
    """How many ranks each context has."""
    contexts = [binding.context for binding in bindings()]
    return [contexts.count(number) for number in range(max(contexts) + 1)]


def distributed_context_subcontext_size(subcontext_id: int) -> Size:
    """How many ranks a context has."""
    sizes = distributed_context_subcontext_sizes()
    if not 0 <= subcontext_id < len(sizes):
        raise ContextError(
            f"subcontext_id out of range: expected 0 <= subcontext_id < {len(sizes)}, got {subcontext_id}",
            expected="a sub-context of this job",
            fix="Ask distributed_context_subcontext_count() first.",
        )
    return Size(sizes[subcontext_id])


def distributed_context_local_to_world_rank(subcontext_id: int, local_rank: int) -> Rank:
    """The world rank of a rank of a sub-context."""
    size = distributed_context_subcontext_size(subcontext_id)
    if not 0 <= local_rank < size:
        raise ContextError(
            f"local_rank out of range for subcontext {subcontext_id}: expected 0 <= local_rank < {int(size)}, got "
            f"{local_rank}",
            expected="a rank of that sub-context",
            fix="Ask distributed_context_subcontext_size(subcontext_id) first.",
        )
    ranks = [rank for rank, binding in enumerate(bindings()) if binding.context == subcontext_id]
    return Rank(ranks[local_rank])


signals.provide("rank", lambda: int(distributed_context_get_rank()) if _initialised else 0)


def _find_context() -> Transport | None:
    """The group of this context's ranks: the world, or a subgroup where the job is split; None for a single process."""
    global _split
    transport, ranks = world(), list_context_ranks()
    if transport is None or len(ranks) == transport.size:
        return transport
    if _split is None:
        _split = transport.subgroup(ranks, f"sub-context {distributed_context_subcontext_id()}")
    return _split


def _require_context(what: str) -> Transport:
    transport = _find_context()
    if transport is None:
        raise MeshError(
            f"cannot {what}: this process is on its own",
            expected="a program of several ranks",
            fix="Start the program with `ttmesh launch -n 2 ...`.",
        )
    return transport
