"""Operations over dims: sums, extrema, sorting, running sums, losses."""
