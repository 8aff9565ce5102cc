"""Tensors made from nothing: constant, random and sampled values."""
