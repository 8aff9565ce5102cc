"""Operations that move values without computing: reshape, permute, slice, concat, pad, copy, gather, layout changes."""
