"""Layer, RMS, batch and group norm, and softmax."""
