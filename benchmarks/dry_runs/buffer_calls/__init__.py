"""The calls whose circular buffers are compared with TT-NN's, by family."""
