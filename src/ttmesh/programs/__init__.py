"""Programs on the mesh: mesh buffers, workloads, kernels and the cores that run them."""
