"""Mesh buffers: how their pages are spread over banks, and transfers to and from the host."""
