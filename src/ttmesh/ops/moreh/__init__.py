"""Moreh's operations by their own names, with their gradients."""
