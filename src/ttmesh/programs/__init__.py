"""Programs on the mesh: mesh buffers, workloads, kernels, the cores that run them, and their circular buffers in L1."""
