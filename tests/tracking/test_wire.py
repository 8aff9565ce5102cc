"""The frame decoder takes what is right and refuses everything else, whatever it is."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttmesh.base import records
from ttmesh.tracking import wire
from ttmesh.tracking.answers import Answers
from ttmesh.tracking.ledger import Ledger
from ttmesh.tracking.process_table import LedgerError
from ttmesh.tracking.session import Peer, Session
from ttmesh.tracking.state import ServerState

FRAMES_PER_EXAMPLE = 250  # times 400 examples: 100,000 frames
ALLOCATED = records.Allocated(1, 2, (0, 1), "DRAM", 4096, 8192, 1024, 8, 1024, "matmul", 5)
FACTS = records.ChipFacts(3, 0, (0, 0), "wormhole_b0", 12, 1 << 30, 64, 1 << 20, False)
RECORDS: list[records.Event] = [
    records.Opened(1, None, (1, 1), "n150", (FACTS,), 1),
    records.Reserved(1, (0,), "L1", 512, "dispatch", 2),
    ALLOCATED,
    records.Freed(1, 2),
    records.Marked("step 3", 7),
    records.Closed(1, 8),
]
GOOD = [
    wire.frame(wire.HELLO, wire.Hello("program", 1, 2, "python", "here")),
    wire.frame(wire.HELLO, wire.Hello("monitor", 1, 2, "python", "here")),
    wire.frame(wire.EVENTS, (0, 3, RECORDS)),
    wire.frame(wire.SNAPSHOT, (6, 3, 0, True, RECORDS[:3])),
    wire.frame(wire.TRAFFIC, ([(-1, 0, 64)],)),
    wire.frame(wire.BYE, (6,)),
    wire.frame(wire.QUERY, ("state",)),
    wire.frame(wire.QUERY, ("buffers", 0, "", 10)),
]


def messages(data: bytes) -> list[wire.Message]:
    frames = wire.Frames()
    frames.feed(data)
    found = []
    while (taken := frames.take()) is not None:
        found.append(wire.message(*taken))
    return found


def test_every_record_comes_back_as_it_was_sent():
    (batch,) = messages(wire.frame(wire.EVENTS, (7, 3, RECORDS)))

    assert isinstance(batch, wire.Batch)
    assert batch.first == 7
    assert batch.records == RECORDS


def test_frames_may_come_byte_by_byte():
    frames = wire.Frames()
    found = []
    for byte in b"".join(GOOD):
        frames.feed(bytes([byte]))
        while (taken := frames.take()) is not None:
            found.append(taken)

    assert len(found) == len(GOOD)
    assert frames.incomplete_bytes == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\n", "a frame begins with b'GE'; expected b'TM'"),
        (wire.HEADER.pack(b"TM", 9, 1, 0), "the peer speaks version 9; expected 4"),
        (wire.HEADER.pack(b"TM", wire.VERSION, 2, 2**32 - 1), "4294967295 bytes is announced; at most 1048576"),
        (wire.frame(99), "kind 99 is not something a client sends"),
        (wire.frame(wire.EVENTS, (0, 0, [(4, 1)])), "the body of a frame of kind 2 is malformed"),
        (wire.frame(wire.EVENTS, (-1, 0, [])), "malformed: Expected `int` >= 0"),
        (wire.frame(wire.EVENTS, (0, 0, [(77, 1)])), "malformed: Invalid value 77"),
        (wire.frame(wire.HELLO, ("root", 1, 1, "", "")), "malformed: Invalid enum value 'root'"),
        (wire.frame(wire.BYE, (2**63,)), "malformed"),
        (wire.HEADER.pack(b"TM", wire.VERSION, 2, 5000) + b"\x91" * 5000, "malformed"),
    ],
)
def test_what_is_no_frame_is_refused_with_the_reason(data, reason):
    with pytest.raises(wire.FrameError, match=reason.replace("(", r"\(")):
        messages(data)


def spoiled(rng: random.Random) -> bytes:
    """A frame, most often a good one with something wrong in it."""
    data = bytearray(rng.choice(GOOD))
    for _ in range(rng.randrange(4)):
        kind = rng.randrange(6)
        at = rng.randrange(len(data)) if data else 0
        if kind == 0 and data:
            data[at] = rng.randrange(256)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3 and len(data) >= 8:
            struct.pack_into("<I", data, 4, rng.choice([0, 1, len(data), 2**31, 2**32 - 1]))
        elif kind == 4 and len(data) > 8:
            data[8:] = rng.randbytes(rng.randrange(64))
            struct.pack_into("<I", data, 4, len(data) - 8)
        elif kind == 5 and len(data) > 9:
            data[rng.randrange(8, len(data))] = rng.choice([0xC0, 0xC1, 0xCF, 0xD9, 0xDD, 0xDF, 0xFF, 0x80, 0x90])
    return bytes(data)


@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**64 - 1))
def test_hostile_frames_end_their_own_session_and_nothing_else(seed):
    rng = random.Random(seed)
    ledger = Ledger()
    answers, nobody = Answers(ledger), ServerState(1, 1, 0.0, 1.0, 0, 0, 0)
    bystander = ledger.join(wire.Who("", 1, 1), "bystander", 0.0)
    ledger.events(bystander, 0, [records.Allocated(9, 9, (0, 1), "DRAM", 0, 100, 50, 2, 50, "", 1)])

    for _ in range(FRAMES_PER_EXAMPLE):
        session = Session(
            ledger,
            Peer(0, "elsewhere", ""),
            clock=lambda: 1.0,
            answer=lambda query: (wire.frame(wire.REPLY, found) for found in answers.answer(query, nobody)),
        )
        session.frames.feed(rng.choice(GOOD[:2]) + spoiled(rng) + spoiled(rng))
        try:
            while session.has_work:
                session.advance()
        except (wire.FrameError, LedgerError):
            pass
        session.end()

    assert ledger.bytes_held == bystander.counted_bytes == bystander.size_bytes
    held = {key: (a.used, a.count) for key, a in ledger.devices["", "", 0].accounts.items()}
    assert held == {"DRAM": (100, 1)}
    assert not [d for d in ledger.devices.values() if d.host and any(a.used or a.count for a in d.accounts.values())]
