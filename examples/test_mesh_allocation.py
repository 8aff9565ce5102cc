"""Seed 001's test, by the name it has there: `python test_mesh_allocation.py`, or as a pytest test."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from mesh_allocation import main


def test_every_device_returns_to_its_baseline() -> None:
    assert main() == 0


if __name__ == "__main__":
    sys.exit(main())
