"""The arithmetic of the FPU, bit for bit: unpacker, fidelity phases, destination registers, packer."""
