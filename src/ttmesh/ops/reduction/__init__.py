"""Reductions over dims: sums, extrema, sorting, cumulative sums, losses."""
