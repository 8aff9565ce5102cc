"""ttnn.graph: capture of a program's calls, and queries of the captured graph."""
