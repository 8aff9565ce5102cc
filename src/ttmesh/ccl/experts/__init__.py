"""Exchange of tokens between the chips that hold their experts."""
