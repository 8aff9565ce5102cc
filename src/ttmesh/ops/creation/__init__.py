"""Creation of tensors: constant, random and sampled values."""
