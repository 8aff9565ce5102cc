"""Plain values every layer shares: geometry, types, records, signals, settings, errors. Never imports torch."""
