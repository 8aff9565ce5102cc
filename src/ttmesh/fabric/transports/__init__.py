"""Engines that join ranks, one file each: drop a file in, its name is the option (`TTMESH_ENGINE`)."""
