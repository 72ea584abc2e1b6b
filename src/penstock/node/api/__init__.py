"""Handlers of client requests: append, fetch, look up, verify, consumer groups, users, status.

`node.request_router` calls them, one method for each request. They decide or look up, and answer through the outbox.
"""
