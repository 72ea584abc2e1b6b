"""Disk work of all logs that no request waits for: syncs, retention, compaction, checks of what is stored.

`node.replicas` starts it; each task runs in a disk thread and reports back to the log's partition.
"""
