"""Watches ranks: labels their output, reports the first failure once, and ends all processes."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TextIO

import psutil

from ttmesh.launch.bindings import LaunchError
from ttmesh.launch.commands import RANK_SCRIPT, RankCommand
from ttmesh.launch.rank import MARK, STOP_S, adopt_orphans, die_with_parent

GRACE_S = 4.0  # after the first failure: time for the other ranks to print their errors
TERM_S = 4.0  # then SIGTERM; after this SIGKILL. Together below the promised 10 s
INTERRUPTED = 130  # 128 + SIGINT, as tt-run has it
TAGGED = re.compile(r"^\[[^\]]*,(\d+)\]<(stdout|stderr|stddiag)>: ?")


@dataclass
class Stream:
    """One pipe of a started process."""

    command: RankCommand
    pipe: IO[bytes]
    to: TextIO
    pending: bytes = b""


@dataclass
class Watch:
    """The state of a running launch."""

    stdout: TextIO
    stderr: TextIO
    grace_s: float
    ended: dict[int, int] = field(default_factory=dict)
    cause: str = ""
    code: int = 0
    interrupts: int = 0


def run(
    commands: Sequence[RankCommand],
    *,
    grace_s: float = GRACE_S,
    stdout: TextIO = sys.stdout,
    stderr: TextIO = sys.stderr,
) -> int:
    """Start everything, watch it to the end; 0, the first failing rank's code, 128 + its signal, or 130 after Ctrl-C."""
    watch = Watch(stdout, stderr, grace_s)
    adopt_orphans()  # the processes around ranks outlive mpirun by seconds; the launcher waits for them
    strangers = {child.pid for child in psutil.Process().children()}
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle_interrupt(number: int, frame: object) -> None:
        watch.interrupts += 1

    for number in before:
        signal.signal(number, handle_interrupt)
    started: list[subprocess.Popen[bytes]] = []
    try:
        with selectors.DefaultSelector() as selector:
            for command in commands:
                started.append(_start(command, selector, watch))
            _watch_processes(started, commands, selector, watch)
    finally:
        _sweep(started)
        _end_adopted(strangers)
        for number, handler in before.items():
            signal.signal(number, handler)
    if watch.interrupts:
        return INTERRUPTED
    return watch.code


def _start(command: RankCommand, selector: selectors.BaseSelector, watch: Watch) -> subprocess.Popen[bytes]:
    try:
        process = _open(command)
    except (OSError, ValueError) as cause:  # ssh not found, or too many arguments
        raise LaunchError(
            f"cannot start {command.argv[0]}: {getattr(cause, 'strerror', None) or cause}",
            expected="a command of this host",
            fix="Check --rsh, the PATH and the size of the environment.",
        ) from None
    if command.first_input:
        assert process.stdin is not None, "a process with an input carries one rank"
        with contextlib.suppress(BrokenPipeError):  # it has ended already, which is reported elsewhere
            process.stdin.write(f"{command.first_input}\n".encode())
            process.stdin.flush()
    for pipe, to in ((process.stdout, watch.stdout), (process.stderr, watch.stderr)):
        assert pipe is not None, "pipes were asked for"
        os.set_blocking(pipe.fileno(), False)
        selector.register(pipe, selectors.EVENT_READ, Stream(command, pipe, to))
    return process


def _open(command: RankCommand) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command.argv,
        env=command.env,
        stdin=subprocess.PIPE if command.carries_one else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C must reach only the launcher, which then stops the ranks in order
        preexec_fn=lambda: die_with_parent(signal.SIGTERM),
    )


def _describe_process(command: RankCommand) -> str:
    """A process's name for errors, if it ends without a report of its rank, for example ssh without a host."""
    name = Path(command.argv[0]).name
    return f"{name} of rank {command.ranks[0]}" if command.carries_one else name


def _watch_processes(
    started: list[subprocess.Popen[bytes]],
    commands: Sequence[RankCommand],
    selector: selectors.BaseSelector,
    watch: Watch,
) -> None:
    term_at = kill_at = float("inf")
    seen_interrupts = 0
    while selector.get_map() or any(p.poll() is None for p in started):
        for key, _ in selector.select(timeout=0.05):
            if not _read(key.data, watch):
                selector.unregister(key.fileobj)
        for process, command in zip(started, commands, strict=True):
            if process.poll() not in (None, 0):
                _record_failure(watch, f"{_describe_process(command)} ended", process.returncode)
        now = time.monotonic()
        if watch.interrupts > seen_interrupts:
            seen_interrupts = watch.interrupts
            print("[ttmesh launch] interrupted: stopping every rank", file=watch.stderr, flush=True)
            _signal(started, signal.SIGINT if seen_interrupts == 1 else signal.SIGKILL)
            term_at = min(term_at, now + TERM_S)
        if watch.cause and term_at == float("inf"):
            term_at = now + watch.grace_s
        if now >= term_at and kill_at == float("inf"):
            for process, command in zip(started, commands, strict=True):
                _stop(process, command, watch)
            kill_at = now + TERM_S
        if now >= kill_at:
            _sweep(started)
            return


def _read(stream: Stream, watch: Watch) -> bool:
    """Pass on what is there; False at the end."""
    chunk = stream.pipe.read(1 << 16)
    if chunk is None:
        return True
    lines = (stream.pending + chunk).split(b"\n")
    stream.pending = lines.pop()
    if not chunk and stream.pending:
        lines.append(stream.pending)
    for line in lines:
        _line(stream, line.decode(errors="replace"), watch)
    return bool(chunk)


def _line(stream: Stream, text: str, watch: Watch) -> None:
    rank: int | None = stream.command.ranks[0] if stream.command.carries_one else None
    tag = None if stream.command.carries_one else TAGGED.match(text)
    if tag:
        rank, text = int(tag.group(1)), text[tag.end() :]
    if text.startswith(MARK):
        _read_report(text[len(MARK) :].split(maxsplit=2), watch)
        return
    print(text if rank is None else f"[{rank}] {text}", file=stream.to, flush=True)


def _read_report(fields: list[str], watch: Watch) -> None:
    """Handle the report of a rank, or of the process around it, about its end."""
    rank, code, *why = fields
    if code == "crashed":
        _record_failure(watch, f"rank {rank} failed", 1, " ".join(why))
        return
    watch.ended[int(rank)] = int(code)
    if int(code):
        _record_failure(watch, f"rank {rank} ended", int(code))


def _record_failure(watch: Watch, what: str, code: int, why: str = "") -> None:
    """Record and print the first failure; later ones are consequences and are not printed."""
    if watch.cause or watch.interrupts:
        return
    how = why or (f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}")
    watch.cause = f"{what}{': ' if why else ' '}{how}"
    watch.code = 128 - code if code < 0 else code
    print(f"[ttmesh launch] first cause: {watch.cause}; stopping the others", file=watch.stderr, flush=True)


def _stop(process: subprocess.Popen[bytes], command: RankCommand, watch: Watch) -> None:
    """Send SIGTERM; if all ranks are on this host, to them instead of mpirun, which would not wait for their output."""
    if process.poll() is not None:
        return
    targets = [psutil.Process(process.pid)]
    if not command.carries_one:
        around = [child for child in targets[0].children() if _is_around_rank(child)]
        targets = around if len(around) >= len(set(command.ranks) - watch.ended.keys()) > 0 else targets
    for target in targets:
        with contextlib.suppress(psutil.NoSuchProcess):
            target.terminate()


def _is_around_rank(process: psutil.Process) -> bool:
    try:
        return str(RANK_SCRIPT) in process.cmdline()
    except psutil.Error:
        return False


def _signal(started: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in started:
        if process.poll() is None:
            process.send_signal(number)


def _end_adopted(strangers: set[int]) -> None:
    """Wait for adopted processes, and kill those that do not end by themselves."""
    adopted = [child for child in psutil.Process().children(recursive=True) if child.pid not in strangers]
    _, left = psutil.wait_procs(adopted, timeout=STOP_S + 1.0)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=TERM_S)


def _sweep(started: list[subprocess.Popen[bytes]]) -> None:
    """End the launched processes that still run, and all their descendants."""
    left = [psutil.Process(p.pid) for p in started if p.poll() is None and psutil.pid_exists(p.pid)]
    below = [child for process in left for child in process.children(recursive=True)]
    for process in [*left, *below]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    for started_process in started:
        started_process.wait()
        for pipe in (started_process.stdin, started_process.stdout, started_process.stderr):
            if pipe is not None:
                pipe.close()
