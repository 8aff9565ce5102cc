"""What TT-NN requires of operands, as tables with its texts; checks in code lie beside the operations."""
