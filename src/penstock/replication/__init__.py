"""Replication of partitions: followers fetch; the leader commits what all required replicas have.

Rules: no files, sockets, clock or metadata in here: facts are passed in, and the actions to take are returned. `rules`
holds every comparison that safety depends on, as pure functions; the rest is bookkeeping for them.

| module              | on the   | what it does                                                                  |
|---------------------|----------|-------------------------------------------------------------------------------|
| `rules`             | both     | commit, joining the ISR, divergence of logs                                   |
| `leader`            | leader   | one partition: high watermark, ISR, durability of acks, progress of followers |
| `leadership_timers` | leader   | deadlines and proposals of all led partitions: one heap                       |
| `isr_proposals`     | leader   | ISR changes, many in one request, one request in flight                       |
| `sessions`          | leader   | followers' fetch sessions: positions, news, long polls, fair shares           |
| `follower`          | follower | one partition: reconcile, append, truncate, reset                             |
| `fetcher`           | follower | fetches from one leader's broker: what is named next, backoff                 |
| `catch_up`          | follower | rate limit of logs that catch up: shared by all, and an allowance for each    |
| `freshness`         | follower | the time up to which a replica shows everything committed                     |

```
follower                                            leader
fetcher.request  ──REPLICA_FETCH: positions──▶ sessions.fetch ─▶ leader.fetched ─▶ committed_end, ISR
follower.news    ◀──batches, divergence, ends── sessions.answers          │
   │ append, truncate, reset                                              └─▶ proposals ─▶ metadata leader
   ▼
the log ─▶ fetcher.proceed ─▶ the next request
```
"""
