"""The simulator: the node itself, on a seeded network, clock and disk."""
