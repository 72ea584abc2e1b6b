"""Bytes of one connection, plain or encrypted (TLS), and limits on connections that have not logged in.

`broker.socket_api` and `broker.peers` read and write through it.
"""
