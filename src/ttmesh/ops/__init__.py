"""Computation on tensors: one short entry (`@op`) per operation, by family; CONTRIBUTING.md says how to add one."""
