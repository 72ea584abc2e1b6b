"""One segment: an Arrow stream on disk with its index, active or sealed; rebuild and check of the index."""
