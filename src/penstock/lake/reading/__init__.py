"""Reads ranges of logs as columns of a table: which streams, which offsets, and what is no longer there."""
