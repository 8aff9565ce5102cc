"""Who holds what memory: wire format, ledger, client and server. Never imports torch."""

import time

from ttmesh.base.records import Marked
from ttmesh.base.signals import signals

__all__ = ["mark"]

LONGEST_MARK = 500  # characters; the server takes a little more


def mark(label: str) -> None:
    """Name this moment: monitors, timelines and exports show it."""
    if signals.listening:
        signals.emit(Marked(str(label)[:LONGEST_MARK], time.time_ns()))
