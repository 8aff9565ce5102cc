"""How operations are defined, named, checked and described; the operations are in the family folders."""
