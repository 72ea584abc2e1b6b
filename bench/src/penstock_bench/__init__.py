"""The benchmark: Penstock beside its alternatives, on one machine, in one interleaved run.

Rules: The same generator, in a process of its own, publishes to every product. Systems are measured in turn (A B, B A,
A B, …), so that other load on the machine affects all of them. A round counts only if it is verified: what was acked is
read back, counted and compared with what was sent; a difference voids the round and is reported. Everything binds to
loopback, ends by itself, and leaves neither processes nor files behind.

Theory: Generator, NATS and brokers share the machine, so absolute rates mean little; ratios within a run can be
compared. The CPU seconds of every process are recorded beside the elapsed time: they are steadier than rates.

Each package may import those below it:

| package       | contents                                                                                      |
|---------------|-----------------------------------------------------------------------------------------------|
| `cli`         | the commands of `penstock bench`: options, progress, tables on the terminal                   |
| `runs`        | whole runs: throughput, latency, limits of the machine, and the goals of `reach`, `replicated` |
| `experiments` | one property of Penstock each, such as compaction, TLS or many streams, and their runner      |
| `results`     | the report as data, its texts and numbers, the HTML page and its plots                        |
| `measure`     | one system in one round, interleaved rounds, latencies; medians, ratios, percentiles          |
| `systems`     | the products in their variants: started, written, read back, stopped                          |
| `load`        | load generators and readers, and the NATS protocol that they speak                            |
| `machine`     | child processes, their CPU time, counters of the kernel, the folder of the logs               |

`extras` imports the packages that only some runs need, and is checked before a run begins.
"""
