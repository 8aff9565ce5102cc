"""The device programs that operations come to: TT-NN's compositions over specs alone, without values."""
