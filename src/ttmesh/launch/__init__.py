"""Starting one program as many ranks, on one host or several, and ending all when one dies (watch). Never imports torch."""
