"""What a tensor is, without its values: shape, format, layout, memory, sharding, placement over the mesh."""
