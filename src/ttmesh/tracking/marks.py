"""Names for moments of a program."""

from __future__ import annotations

import time

from ttmesh.base.records import Marked
from ttmesh.base.signals import signals

LONGEST = 500  # characters; the server takes a little more


def mark(label: str) -> None:
    """Name this moment: monitors, timelines and exports show it."""
    if signals.listening:
        signals.emit(Marked(str(label)[:LONGEST], time.time_ns()))
