"""Source files that stack traces name: found, checked and read (`ttnn.stack_trace_source`)."""

from __future__ import annotations

import functools
import os
import re
import site
import sqlite3
import sys
import tempfile
from pathlib import Path

from ttmesh.monitor.exports.report_schema import insert_rows

FRAME = re.compile(r'File "([^"]+)", line \d+, in ')
PATH_AND_LINE = re.compile(r"([^:\n]+):\d+(?::\d+)?$")


def extract_stack_trace_file(stack_trace_text: str | None) -> str | None:
    """The first file that a stack trace names."""
    for line in (stack_trace_text or "").splitlines():
        found = FRAME.match(line.strip()) or PATH_AND_LINE.match(line.strip())
        if found:
            return found[1]
    return None


def normalize_source_path_from_stack_trace(stack_trace_text: str | None) -> str | None:
    """The resolved path of the first file that a stack trace names, if it may be read."""
    return normalize_existing_source_file_path(extract_stack_trace_file(stack_trace_text))


def normalize_existing_source_file_path(file_path: str | None) -> str | None:
    """The resolved path of a file that exists below one of the folders that programs are run from, else None."""
    if not isinstance(file_path, str) or not file_path.strip() or "\x00" in file_path:
        return None
    try:
        resolved = Path(file_path.strip()).expanduser().resolve()
        readable = resolved.is_file() and any(resolved.is_relative_to(root) for root in _readable_roots())
    except (OSError, RuntimeError):  # RuntimeError: the home of a user that does not exist
        return None
    return str(resolved) if readable else None


def read_source_file(normalized_path: str) -> str | None:
    """The text of such a file; None if it may not or cannot be read."""
    resolved = normalize_existing_source_file_path(normalized_path)
    if resolved is None:
        return None
    try:
        return Path(resolved).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def get_source_file_id(cursor: sqlite3.Cursor, path: str, contents: str) -> int:
    """The number of a source file in the database, where it is added if it is new."""
    insert_rows(cursor, "source_files", [(None, path, contents)], conflict="IGNORE")
    (number,) = cursor.execute("SELECT id FROM source_files WHERE path = ?", (path,)).fetchone()
    return int(number)


def _readable_roots() -> frozenset[Path]:
    return _resolve_roots(os.getcwd(), os.environ.get("VIRTUAL_ENV", ""), tuple(sys.path))


@functools.lru_cache(maxsize=64)
def _resolve_roots(folder: str, environment: str, path: tuple[str, ...]) -> frozenset[Path]:
    """Where Python programs and their libraries are; a report from elsewhere must not fetch any other file."""
    named = [folder, environment, sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), tempfile.gettempdir()]
    named += [os.path.expanduser("~"), site.getusersitepackages(), *site.getsitepackages(), *path]
    roots = {Path(name).resolve() for name in named if name and name != "~"}
    return frozenset(root for root in roots if root != Path(root.anchor))
