"""Reads of a log from any thread: lookups by offset and time, byte ranges for readers, retention limits."""
