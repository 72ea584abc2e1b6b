"""The client library: one sans-IO session under two faces, `penstock.aio` and the blocking `penstock`.

| module       | what it holds                                                            |
|--------------|--------------------------------------------------------------------------|
| `session`    | the protocol's state: hello, requests in flight, deadlines; no IO         |
| `connection` | one TCP connection that drives a session                                 |
| `link`       | connects again when a connection breaks; repeats what may be repeated     |
| `batches`    | raw responses → verified Arrow batches → messages                        |
| `reading`    | places in the log, fetching ahead                                        |
| `columns`    | the caller's tables → batch messages                                     |
| `publishing` | the NATS connection, messages in flight                                   |
| `publish_format` | what headers and acks say                                            |
| `checks`     | what callers pass, checked                                               |
| `threads`    | between callers' threads and the event loop                              |
| `slots`      | how many publishes are under way                                         |
| `values`     | what calls take and give                                                 |
| `errors`     | what callers catch                                                       |
| `connecting` | how an asyncio client is made                                             |
| `keywords`   | keyword arguments, for type checkers                                      |
| `aio`        | the asyncio face                                                         |
| `blocking`   | the blocking face: the asyncio one on a thread of its own                 |
"""
