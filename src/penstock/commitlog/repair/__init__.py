"""Repairs corrupt segments: keeps what can be read, takes what is missing from another replica. `Log` calls it."""
