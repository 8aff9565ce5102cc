"""Shows memory use: one view model, displayed by a live terminal, one-shot tables, a web page and exports."""
