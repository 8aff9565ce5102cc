"""Tokens between the chips that hold their experts."""
