"""ttnn.graph: recording what a program calls, and questions to the record."""
