"""Connections to brokers and the routing of requests: retries, leaders, errors, logins, TLS.

All other parts of the client send their requests through `Link.call`.
"""
