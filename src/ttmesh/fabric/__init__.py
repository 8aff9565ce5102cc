"""How chips are connected: links, routes, counters, and transports between processes."""
