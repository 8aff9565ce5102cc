"""Moreh's operations and their gradients (ttnn.moreh_*)."""
