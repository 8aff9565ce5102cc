"""Which revision a report was made with, without anything secret in the address."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

SCHEMES = ("http", "https", "ssh", "git")


def sanitize_git_remote_url(url: str) -> str:
    """The address of a remote without user, password, query and fragment; other forms as they are."""
    text = (url or "").strip()
    if "://" not in text:
        _user, at, place = text.partition("@")
        is_scp_form = bool(at) and "@" not in place and ":" in place  # git@host:path
        return place if is_scp_form else text
    parts = urlsplit(text)
    if parts.scheme not in SCHEMES:
        return text
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def get_tt_metal_git_report_metadata() -> dict[str, str]:
    """The commit and the remote of the working tree that this package runs from; empty if it is installed."""
    return {
        "git_url": sanitize_git_remote_url(_ask_git("remote", "get-url", "origin")),
        "git_sha": _ask_git("rev-parse", "HEAD"),
    }


def git_hash() -> str | None:
    """The short hash of the commit in the current folder, a version for caches of parameters; None without git."""
    try:
        answer = subprocess.run(("git", "rev-parse", "--short", "HEAD"), capture_output=True, text=True, check=False)
    except OSError:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _ask_git(*question: str) -> str:
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():  # else a program's own repository around its environment would answer
        return ""
    try:
        answer = subprocess.run(["git", "-C", root, *question], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
