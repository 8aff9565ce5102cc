"""Goldens: a reference implementation of each operation in plain torch, for comparisons.

A golden is written from torch's documentation or from the definition of the operation. It imports torch and the standard
library, the number formats of `base` where an argument is one, other goldens, and nothing else of ttmesh: it shares no
code with the lane function that it checks. The entry of an operation names its golden. Lane functions do not live here.
"""
