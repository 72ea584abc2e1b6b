"""Consumers of JetStream's API: readers (without acks) in the memory of the stream's leader, and stored ones.

`requests` answers the API; `running` serves both; `stored` has what consumers with acks need: their rows, acks, dead
letters and removals.
"""
