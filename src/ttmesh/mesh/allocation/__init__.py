"""Memory of a mesh: the heap (out of memory is raised there) and its buffers in lock step, sub-devices, reservations,
memory of programs, the digest that ranks compare.
"""
