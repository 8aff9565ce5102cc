"""Tensors: what they are, where their parts lie, and how they get on and off a mesh."""
