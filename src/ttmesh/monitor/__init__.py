"""Look at what is held: one view model; terminal, one-shot tables, web and exports are shells around it."""
