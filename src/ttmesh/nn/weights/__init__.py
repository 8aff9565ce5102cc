"""Internals of weights: parameter trees, module arguments, saved training states; users import nn/preprocessing."""
