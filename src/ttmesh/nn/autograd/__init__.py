"""Gradients of operations, and operations that training needs and TT-NN does not have; the tape itself is nn/tape.

The gradient of an operation is torch's vjp of its lane function (vjp); gradient_rules has those where that does not do.
"""
