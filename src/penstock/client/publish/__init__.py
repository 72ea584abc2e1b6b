"""Publishes over NATS: headers, the window of messages in flight, acks."""
