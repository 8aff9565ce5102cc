"""Shows memory use: one view model (view, web_view) for a live terminal, one-shot tables, a web page and exports."""
