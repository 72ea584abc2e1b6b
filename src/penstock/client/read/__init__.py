"""Reads a log: positions, prefetching, filters, raw responses to verified Arrow batches."""
