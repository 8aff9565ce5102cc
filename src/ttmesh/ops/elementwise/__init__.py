"""Element-wise operations: unary, binary and ternary, with their gradients and quantisation."""
