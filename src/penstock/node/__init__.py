"""One broker without its sockets: messages and requests in, a `Step` out. No event loop, no clock, no socket.

`node.Node` takes every event, `request_router` finds the handler of a request, and `step` is the only output. The
sub-packages, each of which may import those below it:

| package         | purpose                                                                               |
|-----------------|---------------------------------------------------------------------------------------|
| `api`           | what clients ask: append, fetch, look up, verify, consumer groups, users              |
| `replicas`      | the replicas on this broker: open, lead, follow, repair, truncate                     |
| `maintenance`   | disk work in the background: sync, retention, compaction, scrubbing                   |
| `subscriptions` | NATS: subscriptions, gaps, which partition takes a message                            |
| `control`       | this broker's part in the cluster: start, join, session, shutdown                     |
| `controller`    | decisions of the metadata leader: streams, placement, users, audit                    |
| `security`      | authorization of requests                                                             |
| `partition`     | one partition: admission, write, commit, ack, lookups                                 |
| `quorum`        | the metadata log: Raft, requests to peers, registration of brokers                    |
| `data_dir`      | files of the data directory that are not logs                                         |
"""
