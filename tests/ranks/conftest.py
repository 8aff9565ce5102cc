"""Two hosts for the tests of this folder."""

from __future__ import annotations

from two_hosts import hosts

__all__ = ["hosts"]
