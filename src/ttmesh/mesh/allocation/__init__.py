"""Memory of a mesh: buffers in lock step, sub-devices, reservations, memory of programs, the digest that ranks compare."""
