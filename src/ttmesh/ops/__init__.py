"""Computation on tensors: one short entry per operation, by family."""
