"""Plain functions on lanes that several operations share; none of them is an operation of the catalogue."""
