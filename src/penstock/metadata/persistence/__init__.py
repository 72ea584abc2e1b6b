"""The metadata on a disk: the snapshot of an image, and the journal of a broker from before Raft.

Called when a data directory is opened, when Raft takes or receives a snapshot, and by `penstock dump`.
"""
