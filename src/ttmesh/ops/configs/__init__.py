"""The option objects users pass to operations: compute, program and convolution configs, activations."""
