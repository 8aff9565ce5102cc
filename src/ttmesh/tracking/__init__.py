"""Who holds what memory: wire format, ledger, client and server. Never imports torch."""
