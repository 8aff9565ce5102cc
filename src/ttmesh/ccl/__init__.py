"""Collectives: data moves between chips, planned, counted and carried out on whole mesh axes."""
