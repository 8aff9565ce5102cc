"""Imports point downwards only; this file holds the table."""

from __future__ import annotations
