"""MeshDevice: opening and closing, its chips and cores, submeshes, reshaping."""
