"""Number formats of the chip: tiles, block floats (bfloat8_b, bfloat4_b), packing to bytes, and their compiled kernels."""
