"""Counters in shared memory between processes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from ttmesh.base.errors import MeshError
from ttmesh.mesh.ranks.counter_channel import InterProcessCounterChannel

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no shared memory here")


@pytest.fixture
def name():
    return f"/ttmesh_test_{uuid.uuid4().hex}"


def test_what_one_end_counts_the_other_takes_once(name) -> None:
    owner = InterProcessCounterChannel(name)
    owner.inject(10)
    owner.inject(5)
    connector = InterProcessCounterChannel.connect(name)

    assert (connector.pending(), connector.try_consume_all(), connector.pending()) == (15, 15, 0)
    owner.inject(3)
    assert connector.try_consume_all() == 3
    connector.shutdown()
    owner.shutdown()
    owner.shutdown()
    assert not os.path.exists(f"/dev/shm{name}")


def test_the_next_connector_goes_on_where_the_last_stopped(name) -> None:
    owner = InterProcessCounterChannel(name)
    owner.inject(7)
    first = InterProcessCounterChannel.connect(name)
    assert first.had_clean_prior_shutdown()
    assert first.try_consume_all() == 7
    second = InterProcessCounterChannel.connect(name)  # the first has not shut down
    assert not second.had_clean_prior_shutdown()
    second.shutdown()
    owner.inject(4)

    third = InterProcessCounterChannel.connect(name)
    assert third.had_clean_prior_shutdown()
    assert third.try_consume_all() == 4
    for end in (third, first, owner):
        end.shutdown()


def test_another_process_sees_the_count(name) -> None:
    owner = InterProcessCounterChannel(name)
    owner.inject(6)
    code = (
        "import sys\nfrom ttmesh.mesh.ranks.counter_channel import InterProcessCounterChannel as C\n"
        "c = C.connect(sys.argv[1]); print(c.try_consume_all()); c.shutdown()"
    )

    seen = subprocess.run([sys.executable, "-c", code, name], capture_output=True, text=True, timeout=120, check=True)

    assert seen.stdout.split() == ["6"]
    owner.shutdown()


def test_the_wrong_end_is_refused(name) -> None:
    owner, connector = InterProcessCounterChannel(name), InterProcessCounterChannel.connect(name)
    for call in (owner.try_consume_all, owner.pending, owner.had_clean_prior_shutdown):
        with pytest.raises(MeshError, match="called on a owner instance but requires a connector instance"):
            call()
    with pytest.raises(MeshError, match="inject: called on a connector instance"):
        connector.inject(1)
    with pytest.raises(MeshError, match="File exists"):
        InterProcessCounterChannel(name)
    connector.shutdown()
    owner.shutdown()
    with pytest.raises(MeshError, match="was shut down"):
        owner.inject(1)


def test_names_that_cannot_be_are_refused(name) -> None:
    with pytest.raises(MeshError, match="timed out after 0 ms"):
        InterProcessCounterChannel.connect(name, connect_timeout_ms=0)
    with pytest.raises(MeshError, match="must start with '/'"):
        InterProcessCounterChannel("events")
