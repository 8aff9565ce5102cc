"""How the chips of a group exchange data: one file per algorithm; its name is the value of algorithm=."""
