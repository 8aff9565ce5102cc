"""Weights inside: parameter trees, module arguments, whole tensors by name; users import nn/preprocessing."""
