"""Chips as one device: opening a mesh, buffers, command queues, events, traces."""
