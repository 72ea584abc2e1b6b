"""Verification of stored data: by the brokers of streams, or of files without a broker."""
