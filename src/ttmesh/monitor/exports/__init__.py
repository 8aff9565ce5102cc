"""What is held, in forms that other programs read."""
