"""How operations are defined, named, checked and described; the operations themselves are in the family folders."""
