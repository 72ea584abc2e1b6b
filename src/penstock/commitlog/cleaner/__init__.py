"""Rewrites sealed segments: merges and compresses batches, compacts by key, removes what has expired.

`Log` starts it; the tasks run in a disk thread (Kafka's log cleaner).
"""
