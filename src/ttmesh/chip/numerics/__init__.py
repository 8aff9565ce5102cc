"""The arithmetic of the matrix engine, bit for bit: unpacker, fidelity phases, destination registers, packer."""
