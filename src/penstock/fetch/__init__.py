"""Fetches that wait: a long poll costs an entry in a table, not a task."""
