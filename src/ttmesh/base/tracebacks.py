"""Frames of the user's program: tracebacks that end at its line, and which line is being carried out."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

from ttmesh.base import settings

PACKAGE = str(Path(__file__).parents[1])
RUNPY = {str(Path(runpy.__file__)), "<frozen runpy>"}
EXAMPLES = str(Path(PACKAGE) / "examples")
_user_files: dict[str, str] = {}  # file of code -> its short name, or nothing where it is not the user's
HINT = "The frames of ttmesh itself are hidden; TTMESH_TRACEBACK=full shows them."


def install() -> None:
    """Shorten what Python prints of an uncaught error, unless the program installed a hook."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_short


def shorten_traceback(error: BaseException) -> bool:
    """Drop the frames after the user's last line from an error and its causes; returns whether any was dropped."""
    if settings.get("TTMESH_TRACEBACK") == "full":
        return False
    dropped, seen = False, set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        frames = list(_walk(current.__traceback__))
        kept = _choose(frames)
        if len(kept) != len(frames):
            current.__traceback__ = _join(kept)
            dropped = True
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return dropped


def find_call_site() -> str:
    """File and line of the innermost frame outside ttmesh, or an empty string."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        user_file = _user_files.get(name)  # every large result is labelled with its line
        if user_file is None:
            is_user_file = not is_own_file(name) and not name.startswith("<frozen")
            user_file = _user_files[name] = os.path.basename(name) if is_user_file else ""
        if user_file:
            return f"{user_file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _print_short(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    dropped = shorten_traceback(error)
    if dropped:
        print(HINT, file=sys.stderr)  # first: people and programs look for the error in the last line
    sys.__excepthook__(kind, error, error.__traceback__)


def _walk(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def is_own_file(name: str) -> bool:
    """Whether a file of code belongs to ttmesh, or runs programs for it; examples are users' programs."""
    if name in RUNPY or name.startswith("<ttmesh"):
        return True
    return name.startswith(PACKAGE) and not name.startswith(EXAMPLES)


def _is_ours(traceback: TracebackType) -> bool:
    return is_own_file(traceback.tb_frame.f_code.co_filename)


def _choose(frames: list[TracebackType]) -> list[TracebackType]:
    """Frames up to the user's last one, without ours before it; all of them where the error is not ours."""
    own = [i for i, frame in enumerate(frames) if _is_ours(frame)]
    if not own or len(own) == len(frames):
        return frames
    files = [frame.tb_frame.f_code.co_filename for frame in frames]
    programs = [
        i + 1 for i in own if files[i] in RUNPY and files[i + 1 : i + 2] != [files[i]]
    ]  # where runpy starts one
    begin = next((i for i in programs if any(file.startswith(PACKAGE) for file in files[:i])), 0)  # past `ttmesh run`
    program = max(programs, default=0)
    after = [i for i in own if i > program and not _is_ours(frames[i - 1])]  # where the user's code calls ttmesh
    end = after[-1] if after else len(frames)
    kept = [frame for frame in frames[begin:end] if not _is_ours(frame)]
    return kept or frames


def _join(frames: list[TracebackType]) -> TracebackType | None:
    chained: TracebackType | None = None
    for frame in reversed(frames):
        chained = TracebackType(chained, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chained
