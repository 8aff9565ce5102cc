"""Kernels for CUDA lanes, written in Triton; imported only where torch sees a GPU and Triton is installed.

Each gives the bits of the torch form of the same name (`lane_sum.py`, `block_float.py`, `packing.py`).
"""
