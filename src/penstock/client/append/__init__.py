"""Appends over the socket: batches, idempotent producers, staging and publishing exactly once."""
