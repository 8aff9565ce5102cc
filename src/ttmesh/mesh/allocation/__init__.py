"""Memory of a mesh: buffers in lock step, sub-devices, reservations, what programs hold, the digest ranks compare."""
