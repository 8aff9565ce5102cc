"""Names for moments of a program."""

from __future__ import annotations

import time

from ttmesh.base.records import Marked
from ttmesh.base.signals import signals


def mark(label: str) -> None:
    """Name this moment: monitors, timelines and exports show it."""
    if signals.listening:
        signals.emit(Marked(label, time.time_ns()))
