"""MeshDevice: how it opens and closes, its chips and cores, submeshes and reshape."""
