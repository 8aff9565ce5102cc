"""Collectives: data that moves between chips along mesh axes is planned, counted and exchanged."""
