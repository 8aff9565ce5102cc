"""Complex tensors as pairs of tensors, and their gradients."""
