"""Who holds what memory: wire format, ledger, client and server. Never imports torch."""

from ttmesh.tracking.marks import mark

__all__ = ["mark"]
