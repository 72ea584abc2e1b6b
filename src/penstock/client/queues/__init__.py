"""Queues: messages of a consumer of JetStream's API, each in one client's hand until its ack."""
