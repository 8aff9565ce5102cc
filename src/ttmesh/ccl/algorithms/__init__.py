"""How members of a group exchange data: one file per algorithm, its name is the option."""
