"""A counter in shared memory between two processes: one adds events, the other consumes them."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from pathlib import Path

from ttmesh.base.errors import MeshError

# tt-metal's segment (e4f9f0b, inter_process_counter_layout.hpp): hot fields on cache lines of their own.
SEGMENT_BYTES = 128
PRODUCED, CONSUMED, CLEAN = 0, 64, 68
POLL_S = 0.001  # how often a connector checks for the owner's segment, as TT-Metal does
FOLDER = Path("/dev/shm")
WRAP = 1 << 32


class InterProcessCounterChannel:
    """The owner creates `/dev/shm<shm_name>` and counts up; a connector attaches and consumes new events."""

    def __init__(self, shm_name: str) -> None:
        _check_name(shm_name)
        try:
            file = os.open(FOLDER / shm_name[1:], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except FileExistsError:
            raise MeshError(
                f"InterProcessCounterChannel: shm_open(O_CREAT|O_EXCL) failed ({shm_name}): File exists",
                expected="a name that no other owner uses",
                fix=f"Remove {FOLDER}{shm_name} if its owner is gone.",
            ) from None
        os.ftruncate(file, SEGMENT_BYTES)
        self._attach(shm_name, file, owner=True)
        self._put(CLEAN, 1)  # no connector has exited without shutdown yet

    @classmethod
    def connect(cls, shm_name: str, connect_timeout_ms: int = 30_000) -> InterProcessCounterChannel:
        """Attach to an owner's counter; wait at most `connect_timeout_ms` for the owner to create it."""
        _check_name(shm_name)
        deadline = time.monotonic() + connect_timeout_ms / 1000
        while True:
            try:
                file = os.open(FOLDER / shm_name[1:], os.O_RDWR)
            except FileNotFoundError:
                file = -1
            if file >= 0 and os.fstat(file).st_size >= SEGMENT_BYTES:
                break
            if file >= 0:  # the owner has not sized it yet
                os.close(file)
            if time.monotonic() >= deadline:
                raise MeshError(
                    f"InterProcessCounterChannel::connect: timed out after {connect_timeout_ms} ms waiting for {shm_name}",
                    expected="an owner that has created this name",
                    fix="Start the owner first, or wait longer with connect_timeout_ms.",
                )
            time.sleep(POLL_S)
        channel = cls.__new__(cls)
        channel._attach(shm_name, file, owner=False)
        channel._clean_before = bool(channel._get(CLEAN))
        channel._put(CLEAN, 0)
        return channel

    def _attach(self, shm_name: str, file: int, *, owner: bool) -> None:
        self._name, self._owner, self._clean_before = shm_name, owner, False
        self._lock = threading.Lock()
        self._memory: mmap.mmap | None = mmap.mmap(file, SEGMENT_BYTES)
        os.close(file)

    @property
    def shm_name(self) -> str:
        """The name that both ends use."""
        return self._name

    def inject(self, n: int) -> None:
        """Count n more events; only the owner may call it."""
        self._check_role("inject", owner=True)
        if not 0 <= n < WRAP:
            raise MeshError(f"inject({n})", expected="0 to 4294967295", fix="Pass an unsigned 32-bit number.")
        with self._lock:
            self._put(PRODUCED, (self._get(PRODUCED) + n) % WRAP)

    def try_consume_all(self) -> int:
        """The number of events since the last call; only the connector may call it."""
        self._check_role("try_consume_all", owner=False)
        with self._lock:
            head = self._get(PRODUCED)
            taken = (head - self._get(CONSUMED)) % WRAP
            self._put(CONSUMED, head)
        return taken

    def pending(self) -> int:
        """The least that the next `try_consume_all` returns; only the connector may call it."""
        self._check_role("pending", owner=False)
        return (self._get(PRODUCED) - self._get(CONSUMED)) % WRAP

    def had_clean_prior_shutdown(self) -> bool:
        """Whether the previous connector called `shutdown`; only the connector may call it."""
        self._check_role("had_clean_prior_shutdown", owner=False)
        return self._clean_before

    def shutdown(self) -> None:
        """Detach; the owner removes the name, a connector records a clean shutdown. A second call does nothing."""
        memory = self._memory
        if memory is None:
            return
        if not self._owner:
            self._put(CLEAN, 1)
        self._memory = None
        memory.close()
        if self._owner:
            (FOLDER / self._name[1:]).unlink(missing_ok=True)

    def __del__(self) -> None:
        if getattr(self, "_memory", None) is not None:
            self.shutdown()

    def _get(self, offset: int) -> int:
        value: int = struct.unpack_from("=I", self._check_attached(), offset)[0]
        return value

    def _put(self, offset: int, value: int) -> None:
        struct.pack_into("=I", self._check_attached(), offset, value)

    def _check_attached(self) -> mmap.mmap:
        if self._memory is None:
            raise MeshError(
                f"InterProcessCounterChannel {self._name} was shut down",
                expected="a channel that is still attached",
                fix="Create the channel again as owner, or connect() again.",
            )
        return self._memory

    def _check_role(self, call: str, *, owner: bool) -> None:
        if self._owner is not owner:
            roles = {True: "owner", False: "connector"}
            raise MeshError(
                f"InterProcessCounterChannel::{call}: called on a {roles[self._owner]} instance but requires a "
                f"{roles[owner]} instance",
                expected=f"the {roles[owner]}'s end of the channel",
                fix="Call it in the process at the other end.",
            )


def _check_name(shm_name: str) -> None:
    if not shm_name.startswith("/") or "/" in shm_name[1:] or len(shm_name) < 2:
        raise MeshError(
            f"InterProcessCounterChannel: shm_name must start with '/' and contain no other '/', not {shm_name!r}",
            expected="a name such as '/events'",
            fix="Put one '/' at the front and none elsewhere.",
        )
