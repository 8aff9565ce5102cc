"""Tensors: what they are, which chip holds which shard, and how they get on and off a mesh."""
