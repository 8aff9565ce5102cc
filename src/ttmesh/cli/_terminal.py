"""Standard output in every state: closed, full, gone, or unable to show a character."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import signal
import sys
from collections.abc import Iterator

from ttmesh.base.errors import MeshError

LOOKALIKES = {
    "█": "#", "▓": "#", "▒": "+", "░": ".", "▏": "|", "▎": "|", "▍": "|", "▌": "#", "▋": "#", "▊": "#", "▉": "#",
    "─": "-", "━": "-", "═": "=", "│": "|", "┃": "|", "←": "<-", "→": "->", "✓": "+", "✗": "x", "⚠": "!", "…": "...",
    "·": ".", "•": "*", "×": "x", "µ": "u", "–": "-", "−": "-", "↑": "^", "↓": "v", "↔": "<->", "■": "#", "★": "*",
    **dict.fromkeys("┌┐└┘├┤┬┴┼", "+"), **dict.fromkeys("▁▂▃", "_"), **dict.fromkeys("▄▅▆▇", "#"),
}  # fmt: skip


def look_alike(error: UnicodeError) -> tuple[str, int]:
    """An error handler of codecs: similar ASCII, or else the character's number."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    shown = LOOKALIKES.get(character) or character.encode("ascii", "backslashreplace").decode()
    return shown, error.start + 1


codecs.register_error("ttmesh.look_alike", look_alike)


class ClosedOutput(io.TextIOBase):
    """Replaces a standard output that was closed before the start (`ttmesh info >&-`): writing is an error."""

    def write(self, text: str) -> int:
        """Refuse."""
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


@contextlib.contextmanager
def usable_output() -> Iterator[None]:
    """Inside, any character can be printed; an output that cannot be written to is one error."""
    output = sys.stdout
    if output is None:
        sys.stdout = ClosedOutput()
    streams = [(s, s.errors) for s in (output, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    for stream, _ in streams:
        stream.reconfigure(errors="ttmesh.look_alike")
    try:
        yield
        sys.stdout.flush()
    finally:
        sys.stdout = output
        for stream, errors in streams:
            with contextlib.suppress(OSError):  # it flushes what could not be written
                stream.reconfigure(errors=errors or "strict")


def discard_output() -> int:
    """Drop what is left to print, and return the status of a program whose reader went away."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
            )  # for what the interpreter flushes at its end
    return 128 + signal.SIGPIPE


def unwritable(error: OSError) -> MeshError:
    """The error of an operating system call that was not explained where it happened."""
    where = f"{error.filename}: " if error.filename else ""
    return MeshError(
        f"{where}{error.strerror or error}",
        expected="files and an output that can be read and written",
        fix="Check the paths, the disk and where the output goes.",
    )
