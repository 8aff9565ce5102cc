"""Convolutions in one to three dims: weights, sharding, circular buffers."""
