"""Publish/subscribe by scopes, over NATS and durable through Penstock streams.

| module               | content                                                                                 |
|----------------------|-----------------------------------------------------------------------------------------|
| `subjects`           | the subjects of a scope                                                                 |
"""
