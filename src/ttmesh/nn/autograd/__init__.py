"""Gradient rules and the operations of ttmesh's own that training needs; the tape is nn/tape."""
