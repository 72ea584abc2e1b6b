"""Appends over the socket: idempotent producers, staging and publishing exactly once."""
