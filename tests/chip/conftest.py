"""What the tests of formats share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ttmesh.base import settings
from ttmesh.chip.formats.kernels import loader


@pytest.fixture(params=[True, False], ids=["kernels", "torch"])
def served(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Run the test with compiled kernels and with torch alone."""
    settings.override("TTMESH_KERNELS", request.param)
    loader.forget()
    if request.param and loader.library("block_tiles") is None:
        pytest.skip("no C compiler")
    yield request.param
    settings.override("TTMESH_KERNELS", None)
    loader.forget()


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """Vectors computed with tt-metal e4f9f0b's packers."""
    return dict(json.loads((Path(__file__).parent / "formats" / "bfp_golden_vectors.json").read_text()))
