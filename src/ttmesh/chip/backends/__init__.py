"""Torch devices that can hold lanes: one file each, its name is the option."""
