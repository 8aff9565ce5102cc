"""Collectives fused with a matmul, norm or attention."""
