"""This broker's part in the cluster: start, join, session with the metadata leader, requests of peers, shutdown.

`Cluster` builds the parts; `node.Node` passes peers' events and time to it.
"""
