"""Streams by name: ids, leaders, routing by subject."""
