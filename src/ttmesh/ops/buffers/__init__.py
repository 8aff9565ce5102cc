"""Circular buffers of operations, per core, by family: rules over a program's specs, grid and options.

The sizes are those that TT-NN 0.81.1 prints in graph captures (benchmarks/dry_runs/circular_buffers.py), read off its
program factories (tt-metal e4f9f0b) where these are the same. Rules of element-wise operations, matmuls, convolutions
and pools stand beside the operations. What belongs here: bytes; not whether a call is refused.
"""
