"""Ids, errors, limits and config types: what every layer shares. Imports nothing of Penstock's."""
