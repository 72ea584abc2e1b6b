"""Verifies the files of a log, compares replicas, shows files to people. Read-only.

`penstock verify`, `penstock dump`, the node's verify requests and its scrubber call it.
"""
