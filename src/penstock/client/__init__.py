"""The client library: sans-IO cores below two public APIs, asyncio (`penstock.aio`) and blocking (`penstock`).

`aio` is the asyncio API, `blocking.client` the blocking one, which runs it on a thread of its own. The sub-packages,
each of which may import those below it:

| package    | purpose                                                                    |
|------------|----------------------------------------------------------------------------|
| `bulk`     | large reads and writes for programs that split a log                       |
| `blocking` | the blocking API                                                           |
| `consume`  | consumer groups, committed offsets and lag, tables by key, single messages |
| `publish`  | publishes over NATS, acks                                                  |
| `append`   | appends over the socket, idempotent producers, staging                     |
| `streams`  | streams by name, leaders, routing, archives                                |
| `read`     | positions in the log, prefetching, raw responses to Arrow batches          |
| `link`     | connections, retries, leaders, errors, logins, TLS                         |

`values` and `errors` hold the public types, `checks` validates arguments, `publish_format` encodes publish headers.
"""
