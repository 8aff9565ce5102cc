"""The allocation server: one thread, one selector, any number of clients and monitors."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import time

from ttmesh.tracking import wire
from ttmesh.tracking.address import Address
from ttmesh.tracking.answers import Answers
from ttmesh.tracking.ledger import Ledger, LedgerError
from ttmesh.tracking.listening import listen, notice_loss, peer_pid, process_handle, raise_file_limit
from ttmesh.tracking.server_log import Printer
from ttmesh.tracking.session import Peer, Session
from ttmesh.tracking.state import Answer, ServerState
from ttmesh.tracking.wire import FrameError, Query

MAX_CONNECTIONS = 1024  # a socket and a handle of the process each
SPARE_FILES = 64  # listeners, standard streams, what the interpreter opens
READ_BYTES = 256 << 10
HELLO_S = 5.0  # a peer says in this time who it is
STALLED_S = 30.0  # and takes its reply in this time
STATISTICS_S = 10.0  # at most this often while things change, and a second after they stopped


class Connection:
    """A socket, its session, and what is still to be sent."""

    def __init__(self, sock: socket.socket, session: Session, now_s: float) -> None:
        self.sock = sock
        self.session = session
        self.out = b""
        self.deadline_s = now_s + HELLO_S
        self.process_handle = -1


class Death:
    """Marks the handle of a process in the selector: readable when the process has ended."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection


class Server:
    """Listens where it is told until `stop()`."""

    def __init__(self, addresses: list[Address], printer: Printer, *, token: str = "", mode: int = 0o600) -> None:
        self.ledger = Ledger(printer.watch)
        self.connections: set[Connection] = set()
        self.listening: list[Address] = []
        self._printer = printer
        self._answers = Answers(self.ledger)
        self._token = token
        self._room = min(MAX_CONNECTIONS, (raise_file_limit(2 * MAX_CONNECTIONS + SPARE_FILES) - SPARE_FILES) // 2)
        self._started_s = time.time()
        self._refused = 0
        self._stopping = self._asked = False
        self._files = contextlib.ExitStack()
        self._selector = self._files.enter_context(selectors.DefaultSelector())
        self._wake, self._woken = map(self._files.enter_context, socket.socketpair())
        self._wake.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)
        try:
            for wanted in addresses:
                listener, address = listen(wanted, self._files, mode=mode, token=token)
                self._selector.register(listener, selectors.EVENT_READ, address)
                self.listening.append(address)
        except BaseException:
            self._files.close()
            raise

    def stop(self) -> None:
        """Make `run` return; from any thread or signal handler."""
        self._stopping = True
        self._nudge()

    def ask_statistics(self) -> None:
        """Make `run` print statistics soon; from any thread or signal handler."""
        self._asked = True
        self._nudge()

    def run(self) -> None:
        """Serve until stopped, then print statistics and close."""
        ticked = int(time.time())
        changed_s = shown_s = time.monotonic()
        changes = 0
        try:
            while not self._stopping:
                for key, events in self._selector.select(timeout=1 - time.time() % 1):
                    self._ready(key, events)
                now_s = time.monotonic()
                if self._printer.changes != changes:
                    changes, changed_s = self._printer.changes, now_s
                if int(time.time()) != ticked:
                    ticked = int(time.time())
                    self.ledger.tick(ticked)
                    self._drop_stalled(now_s)
                    if changed_s > shown_s and (now_s - changed_s >= 1 or now_s - shown_s >= STATISTICS_S):
                        self._asked = self._asked or not self._printer.quiet
                if self._asked:
                    self._asked, shown_s = False, now_s
                    self._printer.statistics(self.ledger)
                self._printer.flush()
        finally:
            self._printer.statistics(self.ledger)
            self._printer.close()
            for connection in list(self.connections):
                self._end(connection, "")
            self._files.close()

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has
            self._wake.send(b"x")

    def _ready(self, key: selectors.SelectorKey, events: int) -> None:
        if isinstance(key.data, Connection):
            if key.data not in self.connections:
                return  # ended by an earlier event of this round
            if events & selectors.EVENT_WRITE:
                self._send(key.data)
            else:
                self._read(key.data)
        elif isinstance(key.data, Death):
            self._bury(key.data.connection)
        elif isinstance(key.data, Address) and isinstance(key.fileobj, socket.socket):
            self._accept(key.fileobj, key.data)
        else:
            self._woken.recv(4096)

    def _accept(self, listener: socket.socket, address: Address) -> None:
        try:
            sock, origin = listener.accept()
        except OSError:  # it went away again
            return
        sock.setblocking(False)
        if address.is_tcp:
            notice_loss(sock)
        peer = Peer(0, str(origin[0]), self._token) if address.is_tcp else Peer(peer_pid(sock), "", "")
        session = Session(self.ledger, peer, clock=time.time, answer=self._answer)
        connection = Connection(sock, session, time.monotonic())
        self.connections.add(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)
        if len(self.connections) > self._room:
            self._refuse(connection, f"there are {self._room} connections already")
        elif (handle := process_handle(peer.pid)) >= 0:
            # The end of the socket is not enough: a child forked while its parent connected may hold it open.
            connection.process_handle = handle
            self._selector.register(handle, selectors.EVENT_READ, Death(connection))

    def _bury(self, connection: Connection) -> None:
        """Its process is dead: take what it still sent, then let go."""
        while connection in self.connections and self._read(connection):
            connection.out = b""
        if connection in self.connections:
            self._end(connection, "")

    def _read(self, connection: Connection) -> bool:
        """Take what has come; False when there is no more for now."""
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True  # told once, before what was sent ahead of it; the end comes after that
        except OSError:
            data = b""
        if data:
            connection.session.frames.feed(data)
            self._take(connection)
        else:
            rest = connection.session.frames.incomplete_bytes
            self._end(connection, f"it stopped {rest} bytes into a frame" if rest else "")
        return bool(data)

    def _take(self, connection: Connection) -> None:
        session = connection.session
        try:
            while not connection.out and (taken := session.frames.take()) is not None:
                connection.out = session.receive(*taken)
                if connection.out and not self._push(connection):
                    return
        except (FrameError, LedgerError) as error:
            self._refuse(connection, str(error))
            return
        if session.role:
            connection.deadline_s = float("inf")

    def _push(self, connection: Connection) -> bool:
        """Send what the socket takes; until all is sent nothing more is read, so that nobody piles up replies."""
        try:
            sent = connection.sock.send(connection.out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._end(connection, "")
            return False
        connection.out = connection.out[sent:]
        if connection.out:
            connection.deadline_s = time.monotonic() + STALLED_S
            self._selector.modify(connection.sock, selectors.EVENT_WRITE, connection)
        return not connection.out

    def _send(self, connection: Connection) -> None:
        if self._push(connection):
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
            self._take(connection)

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._refused += 1
        with contextlib.suppress(OSError):
            connection.sock.send(wire.frame(wire.REFUSED, wire.Refused(reason[:500])))
        self._end(connection, reason)

    def _end(self, connection: Connection, reason: str) -> None:
        self.connections.discard(connection)
        self._selector.unregister(connection.sock)
        connection.sock.close()
        if connection.process_handle >= 0:
            self._selector.unregister(connection.process_handle)
            os.close(connection.process_handle)
        if reason:
            self._printer.note(f"⚠ Closed the connection of {connection.session}: {reason}")
        process = connection.session.end()
        if process is not None:
            self._printer.process_gone(process)

    def _drop_stalled(self, now_s: float) -> None:
        for connection in [c for c in self.connections if c.deadline_s < now_s]:
            self._refuse(connection, "it took no replies" if connection.out else "it did not say who it is")

    def _answer(self, query: Query) -> Answer:
        server = ServerState(
            pid=os.getpid(),
            protocol=wire.VERSION,
            started_s=self._started_s,
            now_s=time.time(),
            records=self.ledger.records_seen,
            connections=len(self.connections),
            refused=self._refused,
        )
        return self._answers.answer(query, server)
