"""Starting one program as many ranks, on one host or several, and watching them to the end. Never imports torch."""
