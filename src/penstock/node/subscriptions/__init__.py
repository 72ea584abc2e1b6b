"""NATS subscriptions of the partitions that this broker leads: who subscribes to what, and which messages were missed.

`node.Node` passes messages and events of the NATS connection here; `node.replicas` subscribes and unsubscribes.
"""
