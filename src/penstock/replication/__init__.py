"""Replication of partitions: followers fetch, the leader commits what all that must have it have.

Rules: nothing here knows a file, a socket, a clock or the metadata: facts are handed in, and what is to be done is
handed back. `rules` holds every comparison that safety rests on, as pure functions; the rest is bookkeeping for them.

| module      | on the   | what it does                                                                   |
|-------------|----------|--------------------------------------------------------------------------------|
| `rules`     | both     | what is committed, who may join, where logs diverge                              |
| `leader`    | leader   | one partition: `committed_end`, who is in sync, what an ack may say               |
| `standing`  | leader   | one follower of it: what it has, since when it has not had all                     |
| `agenda`    | leader   | what all led partitions have to do at some time: one heap for all                 |
| `proposals` | leader   | changes of ISRs, many in one request, one request under way                       |
| `sessions`  | leader   | fetches of followers: what is news, long polls, fair shares                       |
| `positions` | leader   | what a follower has named, and was told of it                                     |
| `follower`  | follower | one partition: reconcile, append, truncate, reset                                 |
| `fetcher`   | follower | one leader's broker: what is named next, back-off                                 |
| `pace`      | follower | how fast a log that catches up may come; `rate`: what all of them share           |

```
follower                                            leader
fetcher.requests ──REPLICA_FETCH: positions──▶ sessions.fetch ─▶ leader.fetched ─▶ committed_end, ISR
follower.news    ◀──batches, divergence, ends── sessions.answers          │
   │ append, truncate, reset                                              └─▶ proposals ─▶ metadata leader
   ▼
the log ─▶ fetcher.appended ─▶ the next request
```
"""
