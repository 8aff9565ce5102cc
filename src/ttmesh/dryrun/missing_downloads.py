"""Files that a program would fetch from the web: without a connection a black image, or a long text."""

from __future__ import annotations

import functools
import importlib
import io
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

from ttmesh.dryrun.missing_datasets import IMAGE_SIZE, TEXT

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif")
TEXT_BYTES = 1 << 21  # longer than the longest context of today's models


def replace_requests(module: ModuleType, notes: Counter[str]) -> Callable[[], None]:
    """Let `requests` make up what it cannot fetch; the function returned changes it back."""
    old = module.Session.request

    @functools.wraps(old)
    def request(session: Any, method: str, url: str, *args: Any, **options: Any) -> Any:
        try:
            return old(session, method, url, *args, **options)
        except module.ConnectionError:
            if method.upper() != "GET":
                raise
            content, kind = make_content(url)
            notes[f"{url}: {kind}"] += 1
            response = module.Response()
            response.status_code, response.url, response.raw = 200, url, io.BytesIO(content)
            return response

    def undo() -> None:
        module.Session.request = old

    module.Session.request = request
    return undo


def make_content(url: str) -> tuple[bytes, str]:
    """What stands for the file at this address, and what that is."""
    if urlparse(url).path.lower().endswith(IMAGE_SUFFIXES):
        file = io.BytesIO()
        importlib.import_module("PIL.Image").new("RGB", IMAGE_SIZE).save(file, "PNG")
        return file.getvalue(), "a black image"
    sentence = f"{TEXT} ".encode()
    return sentence * (TEXT_BYTES // len(sentence)), "a long text"
