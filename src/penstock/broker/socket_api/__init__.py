"""The server of the socket API: accepts connections, reads requests, limits rates and memory, sends answers.

`broker.driver` owns it. The requests themselves are handled by `penstock.node`.
"""
