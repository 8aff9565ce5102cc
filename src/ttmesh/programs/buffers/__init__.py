"""Mesh buffers: how their pages lie in banks, and transfers to and from the host."""
