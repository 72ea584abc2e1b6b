"""Load generators and readers: what publishes to a measured system and what reads it, each in a process of its own,
and the NATS protocol that they speak over raw sockets.

`systems` and everything above it may call it. It knows subjects and addresses, not the products behind them.
"""
