"""Kv caches: rows, pages and blocks of keys and values are written in place."""
