"""Copies a user asks for: between torch, the host, files and a mesh; tensors of single chips."""
