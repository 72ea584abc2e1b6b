"""The benchmark: Penstock beside its alternatives, on one machine, in one interleaved run.

Rules: The same generator, in a process of its own, publishes to every product. Systems are measured in turn (A B, B A,
A B, …), so that other load on the machine affects all of them. A round counts only if it is verified: what was acked is
read back, counted and compared with what was sent; a difference voids the round and is reported. Everything binds to
loopback, ends by itself, and leaves neither processes nor files behind.

Theory: Generator, NATS and brokers share the machine, so absolute rates mean little; ratios within a run can be
compared. The CPU seconds of every process are recorded beside the elapsed time: they are steadier than rates.

| module        | contents                                                                   |
|---------------|----------------------------------------------------------------------------|
| `processes`   | children that end with the benchmark, and the CPU time of any process      |
| `worker`      | a Penstock function in a process of its own, typed on both sides           |
| `content`     | counts and checksums of what was sent and what came back                   |
| `frames`      | NATS protocol: frames encoded beforehand, acks parsed afterwards           |
| `nats_socket` | a blocking connection to NATS, for the few requests that are not measured  |
| `generator`   | the publisher: windows, connections, acks, the clock                       |
| `responders`  | ack at once and store nothing: the ceilings of the generator and of NATS   |
| `systems`     | the products, each in its variants: started, written, read back, stopped   |
| `kafka`       | an externally run Kafka, with librdkafka as its generator                  |
| `liftbridge`  | an externally run Liftbridge; its encoding is in `liftbridge_format`       |
| `rounds`      | order of the measurements; medians and ratios with their spread            |
| `experiment` | the runner of an experiment: systems, a load, rows, rounds                 |
| `histogram`   | latencies, and the percentiles that have enough samples                    |
| `schedule`    | the messages of a run at a fixed rate, and their due times                 |
| `timed_socket` | a connection to NATS that also waits for the clock                        |
| `latency_…`   | the sender and the receivers of a latency run, and the summary of rounds   |
| `limits`      | the limits of the machine itself                                           |
| `scale`       | many streams and long ones: idle cost, memory, start, look-ups             |
| `many`        | many streams on three brokers: idle cost, and the loss of one              |
| `extras`      | optional packages, checked before a run begins                             |
| `place`       | the folder of the logs, and leftovers of killed runs                       |
| `refusals`    | the error texts of servers that send no ack                                |
| `report`      | results and machine facts: the JSON form                                   |
| `wording`     | texts and number formats, the same on a terminal and on a page             |
| `html`        | the report as a page, with `plots` and `style`                      |
"""
