"""Engines that connect ranks, one file each; a file's name is its value of `TTMESH_ENGINE`."""
