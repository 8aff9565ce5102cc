"""Sockets between ranks with real processes: the contract, pipelines that train, and faults that name rank and socket."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from rank_launches import HERE, bound, launched

import ttmesh.ttnn as ttnn
from ttmesh.fabric.messaging import engines


def meshes(
    engine: str, ranks: int, program: str, *words: str, schedule: str = "eager", grace: str = "4"
) -> tuple[str, int]:
    """A program on ranks with a mesh of their own each: what they printed, and how it ended."""
    settings = {"TTMESH_SCHEDULE": schedule, "TTMESH_TIMEOUT_S": "300"}
    done = launched(engine, ranks, "--mesh-per-rank", "--grace", grace, str(HERE / program), *words, **settings)
    return done.stdout + done.stderr, done.returncode


@pytest.fixture(autouse=True)
def no_fabric_left() -> Iterator[None]:
    yield
    ttnn.set_fabric_config(ttnn.FabricConfig.DISABLED)


@pytest.mark.parametrize(
    ("engine", "schedule"),
    [("mpi", "adversarial"), ("torchdist", "async"), pytest.param("mpi", "eager", marks=pytest.mark.deep)],
)
def test_a_socket_between_ranks_keeps_the_contract(engine: str, schedule: str) -> None:
    output, code = meshes(engine, 2, "socket_contract.py", schedule=schedule)

    assert code == 0, output
    for rank in (0, 1):
        assert f"[{rank}] rank {rank} kept the contract and moved something" in output


@pytest.mark.parametrize(
    ("engine", "stages"),
    [
        ("mpi", 2),
        ("torchdist", 4),
        pytest.param("mpi", 4, marks=pytest.mark.deep),
        pytest.param("torchdist", 2, marks=pytest.mark.deep),
    ],
)
def test_a_pipeline_over_ranks_trains_as_one_process_does(engine: str, stages: int) -> None:
    output, code = meshes(engine, stages, "pipeline_stage.py", "train")

    assert code == 0, output
    for rank in range(stages):
        assert f"[{rank}] stage {rank} of {stages} is trained" in output


def test_ranks_of_one_mesh_are_joined_too() -> None:
    done = launched("torchdist", 2, str(HERE / "socket_in_one_mesh.py"), TTMESH_TIMEOUT_S="300")

    assert done.returncode == 0, done.stderr
    assert all(f"[{rank}] rank {rank} of one mesh is content" in done.stdout for rank in (0, 1))


@pytest.mark.parametrize("engine", engines.names())
def test_sockets_join_meshes_that_several_ranks_present(engine: str, tmp_path: Path) -> None:
    done = bound(engine, tmp_path, [0, 0, 1, 1], str(HERE / "sockets_of_divided_meshes.py"), TTMESH_TIMEOUT_S="300")

    assert done.returncode == 0, done.stderr
    assert all(f"[{rank}] rank {rank} is content" in done.stdout for rank in range(4))


def test_the_example_of_a_pipeline_checks_itself() -> None:
    example = HERE.parents[1] / "examples" / "distributed" / "06_pipeline_over_ranks.py"

    done = launched("torchdist", 2, "--mesh-per-rank", str(example))

    assert done.returncode == 0, done.stderr
    assert "[1] largest difference to torch: 0.0" in done.stdout


# The first to notice may be receiving or still sending.
GONE = (
    r"rank {} died, stopped or was cut off during (recv_async from|send_async to) rank \d on socket #\d "
    r"\(rank \d → rank \d\)"
)
KILLED, STOPPED = {0: GONE.format(2), 1: GONE.format(2)}, {0: GONE.format(1)}
# Whichever rank is the first to give up names what the other one is doing; the second one repeats it.
RECEIVING = (
    r"(recv_async from rank 1 on socket #1 .*rank 1: recv_async from rank 0 on socket #0|"
    r"recv_async from rank 0 on socket #0 .*rank 0: recv_async from rank 1 on socket #1)"
)
SENDING = (
    r"(send_async to rank 1 on socket #0 .*rank 1: send_async to rank 0 on socket #1|"
    r"send_async to rank 0 on socket #1 .*rank 0: send_async to rank 1 on socket #0)"
)


@pytest.mark.parametrize(
    ("engine", "fault", "ranks", "words"),
    [
        ("mpi", "kill", 3, KILLED),
        pytest.param("torchdist", "kill", 3, KILLED, marks=pytest.mark.deep),
        pytest.param("mpi", "stop", 2, STOPPED, marks=pytest.mark.deep),
        ("torchdist", "stop", 2, STOPPED),
        pytest.param("mpi", "both receive", 2, {0: RECEIVING, 1: RECEIVING}, marks=pytest.mark.deep),
        ("torchdist", "both send", 2, {0: SENDING, 1: SENDING}),
    ],
)
def test_a_fault_in_a_pipeline_names_rank_operation_and_socket(
    engine: str, fault: str, ranks: int, words: dict[int, str], tmp_path: Path
) -> None:
    # A killed rank starts the launcher's clock; a stopped one is ended by it, when the others have told what they saw.
    grace = "120" if fault == "kill" else "4"
    output, code = meshes(engine, ranks, "pipeline_stage.py", fault, "8", str(tmp_path), grace=grace)

    assert code != 0
    for rank, pattern in words.items():
        said = re.search(rf"\[{rank}\] rank {rank} was told: (.*)", output)
        assert said, output
        assert re.search(pattern, said.group(1)), said.group(1)
    assert output.count("first cause") == 1


def test_a_socket_between_ranks_needs_ranks() -> None:
    core = ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, 0), ttnn.CoreCoord(0, 0))
    memory = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 4096)
    config = ttnn.SocketConfig([ttnn.SocketConnection(core, core)], memory, sender_rank=0, receiver_rank=1)
    with (
        ttnn.create_mesh_device(ttnn.MeshShape(1, 2)) as mesh,
        pytest.raises(RuntimeError, match="this process was started alone"),
    ):
        ttnn.MeshSocket(mesh, config)


def test_a_traced_receive_waits_for_its_send() -> None:
    ttnn.set_fabric_config(ttnn.FabricConfig.FABRIC_1D)
    with ttnn.create_mesh_device(ttnn.MeshShape(1, 2), trace_region_size=1 << 20) as mesh:
        sender, receiver = mesh.create_submeshes(ttnn.MeshShape(1, 1))
        core = ttnn.MeshCoreCoord(ttnn.MeshCoordinate(0, 0), ttnn.CoreCoord(0, 0))
        memory = ttnn.SocketMemoryConfig(ttnn.BufferType.L1, 4096)
        ends = ttnn.create_socket_pair(sender, receiver, ttnn.SocketConfig([ttnn.SocketConnection(core, core)], memory))
        tensor = ttnn.ones((32, 32), layout=ttnn.TILE_LAYOUT, device=sender)
        output = ttnn.zeros((32, 32), layout=ttnn.TILE_LAYOUT, device=receiver)
        doubled = ttnn.add(output, output)
        trace = ttnn.begin_trace_capture(receiver, cq_id=0)
        ttnn.experimental.recv_async(output, ends[1])
        ttnn.add(output, output, output_tensor=doubled)
        ttnn.end_trace_capture(receiver, trace, cq_id=0)

        ttnn.execute_trace(receiver, trace, cq_id=0, blocking=False)
        ttnn.experimental.send_async(tensor, ends[0])

        assert ttnn.to_torch(doubled).eq(2).all()
