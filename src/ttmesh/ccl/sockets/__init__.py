"""Sockets: tensors stream between meshes, in one process or between ranks."""
