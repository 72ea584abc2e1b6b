"""The client library: sans-IO cores below two public APIs, asyncio (`penstock.aio`) and blocking (`penstock`).

| module             | what it holds                                                       |
|--------------------|---------------------------------------------------------------------|
| `connection`       | one TCP connection that drives a session                            |
| `connections`      | one connection to each broker that is needed                        |
| `addresses`        | parses broker addresses (`HOST:PORT`, `tls://…`)                    |
| `tls`              | TLS options, files and error messages                               |
| `cluster`          | known brokers and partition leaders; no IO                          |
| `attempts`         | retry state machine: next broker, meaning of errors, backoff; no IO |
| `link`             | routes each request to a broker that can answer it                  |
| `batches`          | raw responses → verified Arrow batches → messages                   |
| `reading`          | positions in the log, prefetching                                   |
| `projecting`       | columns and subjects that brokers select for a reader               |
| `ranges`           | an offset range of one partition, in large batches                  |
| `archives`         | reports archived offsets                                            |
| `getting`          | reads a single message                                              |
| `positions`        | committed offsets of consumer groups, requests to the brokers       |
| `groups`           | committed offsets and lag of consumer groups, public API            |
| `members`          | group membership: heartbeats and assignment                         |
| `consumers`        | consumer group reader with commits and rebalance                    |
| `idle_member`      | wait of an idle group member for partitions                         |
| `progress`         | processed and committed offsets of a consumer; no IO                |
| `known_producers`  | idempotent producers known to the leaders                           |
| `staging`          | stage rows and publish them exactly once                            |
| `staged_runs`      | publishes one staged batch of a query, in pieces                    |
| `partitioning`     | assigns the rows of a table to partitions                           |
| `columns`          | the caller's tables → batch messages                                |
| `publishing`       | the NATS connection, messages in flight                             |
| `nats_client`      | nats-py's client with enforced TLS settings                         |
| `publish_format`   | encodes publish headers, decodes acks                               |
| `checks`           | validates arguments                                                 |
| `of_this_process`  | base of objects that cannot be pickled                              |
| `threads`          | calls from the caller's threads into the event loop                 |
| `slots`            | limits publishes in flight                                          |
| `values`           | argument and result types                                           |
| `errors`           | exceptions                                                          |
| `connecting`       | creates an asyncio client                                           |
| `keywords`         | keyword arguments, for type checkers                                |
| `aio`              | the asyncio API                                                     |
| `blocking_groups`  | consumers and groups, blocking API                                  |
| `blocking_staging` | staging, blocking API                                               |
| `open_clients`     | closes open blocking clients at exit                                |
| `blocking`         | the blocking API: runs the asyncio client on its own thread         |
"""
