"""One mesh over several processes: which block a rank holds and how ranks talk."""
