"""Which engine is chosen, and what signs of life and verdicts say; no processes are started here."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch

from ttmesh.base.errors import RankError, SettingError
from ttmesh.fabric.messaging import engines, wire_layout
from ttmesh.fabric.messaging.liveness import GONE, LEFT, Liveness
from ttmesh.fabric.messaging.rank_job import Job, judge_failure, shorten_cause

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def test_a_file_in_the_folder_is_an_engine() -> None:
    assert {"mpi", "torchdist"} <= set(engines.names())
    assert "__init__" not in engines.names()


@pytest.mark.parametrize("name", engines.names())
def test_every_engine_says_who_starts_it_and_connects(name: str) -> None:
    module = engines.load(name)

    assert module.is_launched({}) is False
    assert callable(module.connect)


def test_the_launcher_decides_the_engine() -> None:
    assert engines.choose_engine({}) is None
    assert engines.choose_engine({"OMPI_COMM_WORLD_RANK": "0"}) == "mpi"
    assert engines.choose_engine(TORCHRUN) == "torchdist"


def test_the_setting_decides_before_the_launcher() -> None:
    assert engines.choose_engine({"OMPI_COMM_WORLD_RANK": "0", "TTMESH_ENGINE": "torchdist"}) == "torchdist"


def test_two_launchers_at_once_need_a_choice() -> None:
    with pytest.raises(RankError, match=r"fit several engines: \['mpi', 'torchdist'\].*Set TTMESH_ENGINE"):
        engines.choose_engine({"OMPI_COMM_WORLD_RANK": "0", **TORCHRUN})


def test_an_unknown_engine_lists_the_known_ones() -> None:
    with pytest.raises(SettingError, match=r"no engine named 'mpl'; expected one of .*Did you mean mpi\?"):
        engines.choose_engine({"TTMESH_ENGINE": "mpl"})


def test_a_process_started_alone_cannot_join(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (*TORCHRUN, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "TTMESH_ENGINE"):
        monkeypatch.delenv(variable, raising=False)

    with pytest.raises(
        RankError, match="started alone; expected several ranks started by mpirun, torchrun or `ttmesh launch`"
    ):
        engines.connect()
    assert engines.world() is None


def test_the_silent_are_blamed_before_the_absent() -> None:
    here = "all_reduce on group 'axis1' of ranks [0, 1, 2], seen by rank 0"

    assert judge_failure(here, "late", (2,), "", {1: "barrier"}) == (
        (2,),
        f"rank 2 died, stopped or was cut off during {here} (late)",
    )
    assert judge_failure(here, "late", (), "rank 1 aborted: x", {}) == ((), f"rank 1 aborted: x; this ended {here}")
    assert judge_failure(here, "late", (), "", {1: LEFT}) == (
        (1,),
        f"rank 1 alive but not in {here} (late; rank 1: it left)",
    )
    assert judge_failure(here, "late", (), "", {}) == ((), f"late in {here}")


def test_an_engines_words_lose_their_source_file() -> None:
    words = "[/src/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:77. This is typically …\nmore"

    assert shorten_cause(RuntimeError(words)) == "Connection closed by peer [10.0.0.1]:77"


class _Store:
    """A store in a dict; `frozen` ranks are no longer written."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self.values[key] = value

    def multi_get(self, keys: list[str]) -> list[bytes]:
        return [self.values[key].encode() for key in keys]

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.values.get(key, "") == expected:
            self.values[key] = desired
        return self.values[key].encode()


def until(met: Callable[[], bool]) -> None:
    """Go on when it is so; a thread may get its turn late on a busy machine."""
    deadline = time.monotonic() + 60.0
    while not met():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def test_signs_of_life_tell_silent_ranks_from_busy_ones() -> None:
    store = _Store()
    store.values["sign/2"] = "7 barrier #1 on group 'world'"
    lives = [Liveness(lambda: store, rank, 3) for rank in (0, 1)]
    assert all(live.start(60.0) for live in lives)

    lives[0].watch()
    until(lambda: list(lives[0].find_silent([0, 1, 2], 0.6)) == [2])

    assert lives[0].list_activities([1, 2]) == {1: "starting", 2: "barrier #1 on group 'world'"}
    lives[1].report_failure("rank 1 has no paper")
    until(lambda: "failure" in store.values and store.values["failure"] != "")
    lives[0].report_failure("a later cause")
    until(lambda: lives[0].failure != "")
    assert lives[0].failure == "rank 1 has no paper"
    for live in lives:
        live.stop(0.0)
    until(lambda: store.values["sign/1"].endswith(GONE))


def test_large_tensors_go_in_pieces_that_fit_32_bit_counts() -> None:
    class Flat:
        def __init__(self, numel: int, size: int) -> None:
            self._numel, self._size = numel, size

        def numel(self) -> int:
            return self._numel

        def element_size(self) -> int:
            return self._size

    spans = list(wire_layout.split_pieces(Flat(3 * 2**30 + 5, 4)))  # type: ignore[arg-type]

    assert spans[0][0] == 0
    assert spans[-1][1] == 3 * 2**30 + 5
    assert all(b - a <= 2**31 - 1 and (b - a) * 4 <= wire_layout.PIECE_BYTES for a, b in spans)
    assert list(wire_layout.split_pieces(Flat(0, 4))) == []  # type: ignore[arg-type]


def test_memory_of_an_operation_that_was_interrupted_is_kept() -> None:
    store = _Store()
    live = Liveness(lambda: store, 0, 1)
    assert live.start(60.0)
    job = Job(live, None)
    state = job.add_group("group 'world'", (0,), 0, 1)
    received = torch.zeros(8)
    memory = weakref.ref(received)

    def poll() -> bool:
        raise KeyboardInterrupt

    def start(into: torch.Tensor) -> Callable[[], bool]:
        return poll

    with pytest.raises(KeyboardInterrupt):
        job.run(state, "recv", partial(start, received), 1.0)

    del received
    gc.collect()
    assert memory() is not None  # the engine may still write into it
    live.stop(0.0)
