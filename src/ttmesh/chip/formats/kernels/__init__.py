"""C files compiled at first use, and the loader that finds them."""
