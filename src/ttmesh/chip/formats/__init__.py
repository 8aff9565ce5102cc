"""Number formats of the chip: tiles, block floats, packing, and the compiled kernels behind them."""
