"""How chips are joined: links, routes, counters, and transports between processes."""
