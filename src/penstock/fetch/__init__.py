"""Long polls: waiting fetches, each an entry in a table instead of a task."""
