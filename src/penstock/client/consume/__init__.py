"""Consumer groups, committed offsets and lag, tables by key."""
