"""Ingestion: from NATS bytes to rows of the log, and from offsets to acks."""
