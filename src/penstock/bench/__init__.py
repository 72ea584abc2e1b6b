"""The benchmark: Penstock beside what one would use instead, on one machine, in one interleaved run.

Rules: the same generator publishes to every product, in a process of its own. Systems are measured in turn (A B, B A,
A B, …), so that what else happens on the machine happens to all. A round counts only if it is true: what was acked is
read back, counted and compared with what was sent, and a difference voids the round and is reported. Everything binds
to loopback, ends by itself, and leaves neither processes nor files behind.

Theory: the machine is shared by generator, NATS and brokers, so absolute rates say little, and ratios within a run say
what can be said. CPU seconds of every process are taken beside the clock: they are steadier than rates.

| module        | what it holds                                                              |
|---------------|----------------------------------------------------------------------------|
| `processes`   | children that end with us, and the CPU time of any process                 |
| `worker`      | a function of ours in a process of its own, typed on both sides            |
| `content`     | what was sent and what came back, as numbers that can be compared          |
| `frames`      | NATS protocol: frames made beforehand, acks taken apart afterwards         |
| `nats_socket` | a blocking connection to NATS, for the few requests that are not measured  |
| `generator`   | the publisher: windows, connections, acks, the clock                       |
| `responders`  | who acks at once and stores nothing: what the generator and NATS can do    |
| `systems`     | the products, each in its variants: started, written, read back, stopped   |
| `kafka`       | a Kafka that somebody runs, with librdkafka as its generator               |
| `liftbridge`  | a Liftbridge that somebody runs; its bytes are in `liftbridge_format`      |
| `rounds`      | who is measured when; medians and ratios with their spread                 |
| `histogram`   | latencies, and which percentiles of them may be said                       |
| `schedule`    | what is published when, at a fixed rate                                    |
| `timed_socket` | a connection to NATS that waits for the clock too                         |
| `latency_…`   | the sender and the receivers of a latency run, and what its rounds say     |
| `limits`      | what the machine itself can do                                             |
| `scale`       | many streams and long ones: idle cost, memory, start, look-ups             |
| `many`        | many streams on three brokers: idle cost, and the loss of one              |
| `extras`      | packages that not everybody needs, looked for before a run begins          |
| `place`       | where logs lie, and what a killed run left behind                          |
| `refusals`    | what a server says in place of an ack, as a sentence                       |
| `report`      | results, facts of the machine: the JSON form                               |
| `wording`     | how results are said, on a terminal and on a page alike                    |
| `html`        | the same as a page, with `plots`, `svg` and `style`                        |
"""
