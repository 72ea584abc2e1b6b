"""The client library: sans-IO cores below two public APIs, asyncio (`penstock.aio`) and blocking (`penstock`).

`aio` is the asyncio API. `blocking.client` is the blocking one, which runs it on a thread of its own; `python3 dev.py
faces` generates it. The sub-packages, each of which may import those below it, except that `consume`, `publish` and
`append` do not know each other:

| package    | purpose                                                           |
|------------|-------------------------------------------------------------------|
| `bulk`     | large reads and writes for programs that split a log              |
| `blocking` | the blocking API                                                  |
| `queues`   | messages to work on, each in one client's hand until its ack       |
| `consume`  | consumer groups, committed offsets and lag, tables by key         |
| `publish`  | publishes over NATS, acks                                         |
| `append`   | idempotent producers, staging                                     |
| `streams`  | streams by name and by leader, routing by subject                 |
| `read`     | positions in the log, prefetching, raw responses to Arrow batches |
| `link`     | connections, retries, leaders, errors, logins, TLS                |

`values` and `errors` hold the public types, `checks` validates arguments, `publish_format` encodes publish headers,
`consumer_config` the config of a consumer of JetStream's API.
"""
