"""Plain functions on lanes that several operations share; nothing here enters the catalogue."""
