"""matmul and linear in all forms, their rules and the L1 they need; expert matmuls are in ops/moe."""
