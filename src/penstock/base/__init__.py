"""Ids, errors, limits and config types shared by all layers. Imports nothing else of Penstock."""
