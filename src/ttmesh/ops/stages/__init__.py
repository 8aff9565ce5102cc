"""Device programs and temporaries (intermediate tensors) of operations that TT-NN composes of several programs, as specs."""
