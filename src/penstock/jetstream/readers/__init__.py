"""Readers: consumers of JetStream's API without acks, ephemeral and ordered, push and pull (ADR 94).

A reader lives in memory at the leader of its stream. After a change of the leader it is gone, and clients make it anew.
"""
