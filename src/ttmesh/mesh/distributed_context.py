"""The ranks of this program as TT-NN's `distributed_context_*` functions see them; one process is rank 0 of 1."""

from __future__ import annotations

from ttmesh.base.errors import MeshError
from ttmesh.fabric.engines import chosen, world
from ttmesh.fabric.transports.protocol import Transport
from ttmesh.mesh.mesh_device import open_meshes

_initialised = False


class Rank(int):
    """A rank's number."""

    def __repr__(self) -> str:
        return f"Rank({int(self)})"


class Size(int):
    """How many ranks."""

    def __repr__(self) -> str:
        return f"Size({int(self)})"


def using_distributed_env() -> bool:
    """Whether a launcher (mpirun, torchrun, ttmesh launch) started this process as one of several ranks."""
    return chosen() is not None and world_size() > 1


def init_distributed_context() -> None:
    """Join the other ranks; harmless when repeated."""
    global _initialised
    world()
    _initialised = True


def distributed_context_is_initialized() -> bool:
    """Whether the ranks were joined."""
    return _initialised or chosen() is not None


def world_rank() -> int:
    """This process's number among all ranks."""
    transport = world()
    return 0 if transport is None else transport.rank


def world_size() -> int:
    """How many ranks there are."""
    transport = world()
    return 1 if transport is None else transport.size


def distributed_context_get_rank() -> Rank:
    """This process's rank."""
    return Rank(world_rank())


def distributed_context_get_size() -> Size:
    """How many ranks there are."""
    return Size(world_size())


def distributed_context_barrier() -> None:
    """Return when every rank has come here; ranks that present one mesh compare what they allocated on it."""
    transport = world()
    if transport is None:
        return
    for mesh in open_meshes():
        if mesh.part is not None and mesh.part.place is not None and mesh.heap.digest is not None:
            mesh.heap.digest.compare(mesh.part.host, repr(mesh))
    transport.barrier()


def distributed_context_allgather_int(value: int) -> list[int]:
    """Every rank's number, in rank order."""
    transport = world()
    if transport is None:
        return [int(value)]
    return [row[0] for row in transport.all_gather_ints([int(value)])]


def distributed_context_send_bytes(data: bytes, dest: int, tag: int = 0) -> None:
    """Send bytes to a rank that receives as many."""
    _joined("send").send_bytes(data, int(dest), tag=tag)


def distributed_context_recv_bytes(size: int, source: int, tag: int = 0) -> bytes:
    """Receive so many bytes from a rank."""
    return _joined("receive").recv_bytes(size, int(source), tag=tag)


def distributed_context_world_rank() -> Rank:
    """This process's rank among all."""
    return distributed_context_get_rank()


def distributed_context_world_size() -> Size:
    """How many ranks there are in all."""
    return distributed_context_get_size()


def distributed_context_local_to_world_rank(rank: int) -> Rank:
    """The rank's number among all: there is one context, so the same."""
    return Rank(int(rank))


def distributed_context_subcontext_id() -> int:
    """The number of this rank's context: there is one."""
    return 0


def distributed_context_subcontext_count() -> int:
    """How many contexts there are."""
    return 1


def distributed_context_subcontext_size() -> Size:
    """How many ranks this rank's context has."""
    return distributed_context_get_size()


def distributed_context_subcontext_sizes() -> list[int]:
    """How many ranks each context has."""
    return [world_size()]


def _joined(what: str) -> Transport:
    transport = world()
    if transport is None:
        raise MeshError(
            f"cannot {what}: this process is on its own",
            expected="several ranks",
            fix="Start the program with `ttmesh launch -n 2 ...`.",
        )
    return transport
