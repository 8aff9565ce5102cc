"""How a call becomes work: arguments, plans, lane functions; circular buffers must not clash with L1 buffers."""
