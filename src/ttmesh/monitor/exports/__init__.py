"""Exports of memory use in formats of other programs."""
