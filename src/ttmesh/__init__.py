"""ttmesh: run multi-device Tenstorrent programs anywhere and see what every chip holds."""

from __future__ import annotations

__version__ = "0.1.0"
