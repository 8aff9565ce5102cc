"""Mixture of experts on one chip: routing and matmuls over experts; traffic between chips is in ccl/experts."""
