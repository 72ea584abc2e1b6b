"""The connection to NATS: connects, logs in, reads messages into groups, sends acks; the embedded nats-server.

`broker.driver` owns the link. Parsing is done by `penstock.ingest.nats` and `penstock.hot`.
"""
