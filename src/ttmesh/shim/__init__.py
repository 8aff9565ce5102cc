"""A folder for PYTHONPATH in which `ttnn` means ttmesh."""
