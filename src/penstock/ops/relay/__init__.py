"""Publishes the messages of a stream to NATS: frames, the connection, and the answers of streams."""
