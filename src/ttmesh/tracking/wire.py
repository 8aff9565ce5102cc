"""The wire format: frames with a header, and the messages inside them, checked field by field."""

from __future__ import annotations

import struct
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta, Raw, Struct

from ttmesh.base.records import Count, Event, Name, SystemName

VERSION = 4
MAGIC = b"TM"
HEADER = struct.Struct("<2sBBI")  # magic, version, kind, length of the body
MAX_BODY = 1 << 20  # a batch of 1024 records on 32 chips is 0.2 MB; clients split what is larger
MAX_REPLY = 64 << 20  # what a monitor accepts from its server

HELLO, EVENTS, SNAPSHOT, TRAFFIC, BYE, RESYNC, QUERY, REPLY, REFUSED = range(1, 10)


class FrameError(Exception):
    """The peer violated the protocol; the text says how."""


class Who(NamedTuple):
    """A unique process: a pid may be reused, a pid with its start time is not. `host` is empty on this machine."""

    host: str
    pid: int
    started: int


class Hello(Struct, array_like=True, frozen=True):
    """Who connects, and as what."""

    role: Literal["program", "monitor"]
    pid: Count
    started: Count
    name: Name
    host: Name
    token: Name = ""


class Batch(Struct, array_like=True, frozen=True):
    """Records in order; `first` is the sequence number of the first of them, the time that of sending."""

    first: Count
    time_ns: Count
    records: list[Event]


class Snapshot(Struct, array_like=True, frozen=True):
    """One part of everything held just before record number `next`; applied once all parts have arrived."""

    next: Count
    time_ns: Count
    part: Count
    last: bool
    records: list[Event]


class Link(Struct, array_like=True, frozen=True, gc=False):
    """Bytes that went over one link since the program began; chip -1 is the host."""

    source: Annotated[int, Meta(ge=-1, le=65535)]
    target: Annotated[int, Meta(ge=-1, le=65535)]
    size_bytes: Count


class Traffic(Struct, array_like=True, frozen=True):
    """Totals of one system since the program began; each message replaces the one before it."""

    links: Annotated[list[Link], Meta(max_length=65536)]
    system: SystemName = ""


class Bye(Struct, array_like=True, frozen=True):
    """The program ends normally after this many records."""

    next: Count


class Query(Struct, array_like=True, frozen=True):
    """A monitor's question; device -1 means all of them."""

    what: Literal["state", "history", "buffers", "leaks"]
    device: Annotated[int, Meta(ge=-1, le=65535)] = -1
    host: Name = ""
    limit: Annotated[int, Meta(ge=0, le=20_000)] = 2000
    window_s: Annotated[int, Meta(ge=1, le=86_400)] = 120
    system: SystemName = ""
    points: Annotated[int, Meta(ge=1, le=3600)] = 3600  # of each history; more are summed up


class Refused(Struct, array_like=True, frozen=True):
    """Why the server closes the connection."""

    reason: Name


Message = Hello | Batch | Snapshot | Traffic | Bye | Query

_DECODERS: dict[int, msgspec.msgpack.Decoder[Message]] = {
    HELLO: msgspec.msgpack.Decoder(Hello),
    EVENTS: msgspec.msgpack.Decoder(Batch),
    SNAPSHOT: msgspec.msgpack.Decoder(Snapshot),
    TRAFFIC: msgspec.msgpack.Decoder(Traffic),
    BYE: msgspec.msgpack.Decoder(Bye),
    QUERY: msgspec.msgpack.Decoder(Query),
}
_encoder = msgspec.msgpack.Encoder()


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # file names, arguments and labels of programs need not be valid Unicode
        return _encoder.encode(_replace_surrogates(msgspec.to_builtins(value)))


def _replace_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return [_replace_surrogates(item) for item in value] if isinstance(value, list | tuple) else value


def token_text(token: str) -> str:
    """A token as it goes over the wire: a variable or a file may hold bytes that are not valid Unicode."""
    return token.encode(errors="surrogateescape").decode(errors="backslashreplace")


def pack_records(records: list[Event]) -> Raw:
    """Records encoded for a frame, so that their length is known before the frame is made."""
    return Raw(_encode(records))


def frame(kind: int, body: object = None) -> bytes:
    """A message ready to be sent."""
    payload = _encode(body)
    return HEADER.pack(MAGIC, VERSION, kind, len(payload)) + payload


def message(kind: int, body: bytes) -> Message:
    """The message in a body, or a FrameError."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise FrameError(f"kind {kind} is not something a client sends")
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
        raise FrameError(f"the body of a frame of kind {kind} is malformed: {error}") from None


class Frames:
    """Splits a stream of bytes into frames; unread ones are kept."""

    def __init__(self, *, max_body: int = MAX_BODY) -> None:
        self.max_body = max_body
        self._pending = bytearray()
        self._start = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        del self._pending[: self._start]
        self._start = 0
        self._pending += data

    def give_back(self, data: bytes) -> None:
        """Put complete frames in front of everything else."""
        self._pending[: self._start] = data
        self._start = 0

    def take(self) -> tuple[int, bytes] | None:
        """The next complete frame as (kind, body), None if it has not arrived yet; FrameError if it is invalid."""
        if not self.has_frame:
            return None
        magic, version, kind, length = HEADER.unpack_from(self._pending, self._start)
        if magic != MAGIC:
            raise FrameError(f"a frame begins with {magic!r}; expected {MAGIC!r}")
        if version != VERSION:
            raise FrameError(f"the peer speaks version {version}; expected {VERSION}")
        if length > self.max_body:
            raise FrameError(f"a frame of {length} bytes is announced; at most {self.max_body} are allowed")
        begin = self._start + HEADER.size
        self._start = begin + length
        return kind, bytes(memoryview(self._pending)[begin : self._start])

    @property
    def has_frame(self) -> bool:
        """Whether `take` would return a frame or raise."""
        waiting = len(self._pending) - self._start - HEADER.size
        if waiting < 0:
            return False
        magic, version, _, length = HEADER.unpack_from(self._pending, self._start)
        return bool(length <= waiting or magic != MAGIC or version != VERSION or length > self.max_body)

    @property
    def incomplete_bytes(self) -> int:
        """The number of bytes that were not taken yet."""
        return len(self._pending) - self._start
