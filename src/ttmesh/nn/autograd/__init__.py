"""Gradient rules, and operations that training needs and TT-NN does not have; the tape itself is nn/tape."""
