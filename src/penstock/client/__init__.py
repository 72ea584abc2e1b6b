"""The client library: sans-IO cores under two faces, `penstock.aio` and the blocking `penstock`.

| module       | what it holds                                                            |
|--------------|--------------------------------------------------------------------------|
| `connection` | one TCP connection that drives a session                                 |
| `connections` | one connection to each broker that is needed                             |
| `addresses`  | where brokers listen, as people write it                                  |
| `tls`        | with which files TLS is spoken, and what its errors mean                  |
| `cluster`    | which brokers there are, and who leads what; no IO                        |
| `attempts`   | whom to ask next, and what a failure means; no IO                         |
| `link`       | sends each request to the broker that can answer it                       |
| `batches`    | raw responses → verified Arrow batches → messages                        |
| `reading`    | places in the log, fetching ahead                                        |
| `projecting` | which columns and subjects brokers are asked for                          |
| `ranges`     | a part of one partition, in batches that are not small                    |
| `archives`   | what archives have of a stream                                            |
| `getting`    | one message                                                              |
| `positions`  | where groups are, as the brokers keep it                                 |
| `groups`     | the same, as people ask for it                                           |
| `members`    | one member of a group: its heartbeats                                    |
| `consumers`  | reading as a group, from where it was                                    |
| `heirs`      | what a consumer without partitions waits for                             |
| `progress`   | what of that is done, and what committed; no IO                           |
| `known_producers` | who appends exactly once, as leaders know                            |
| `staging`    | rows staged, and published exactly once                                  |
| `staged_runs` | one batch of a query on its way: pieces and plans                       |
| `partitioning` | which partition each row of a table belongs to                         |
| `columns`    | the caller's tables → batch messages                                     |
| `publishing` | the NATS connection, messages in flight                                   |
| `nats_client` | nats-py's client, held to the TLS that is asked for                      |
| `publish_format` | what headers and acks say                                            |
| `checks`     | what callers pass, checked                                               |
| `of_this_process` | what cannot be pickled                                               |
| `threads`    | between callers' threads and the event loop                              |
| `slots`      | how many publishes are under way                                         |
| `values`     | what calls take and give                                                 |
| `errors`     | what callers catch                                                       |
| `connecting` | how an asyncio client is made                                             |
| `keywords`   | keyword arguments, for type checkers                                      |
| `aio`        | the asyncio face                                                         |
| `blocking_groups` | consumers and groups for the blocking face                           |
| `blocking_staging` | staging for the blocking face                                       |
| `open_clients` | which blocking clients are closed at exit                              |
| `blocking`   | the blocking face: the asyncio one on a thread of its own                 |
"""
