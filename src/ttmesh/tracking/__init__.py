from ttmesh.tracking.marks import mark

__all__ = ["mark"]
