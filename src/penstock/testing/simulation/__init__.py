"""The simulator: the node itself, on a seeded network, clock and disk.

| module            | what it does                                                        |
|-------------------|---------------------------------------------------------------------|
| `scheduler`       | virtual time: the event queue, the clocks of each broker            |
| `trace`           | the lines of a run, and their hash                                  |
| `network`, `nats` | simulated TCP; a model of nats-server                               |
| `disk`            | a disk that takes time, fails, and loses what was not synced        |
| `planned_faults`  | kinds of faults                                                     |
| `faults`          | carries out faults, and ends them                                   |
| `targeted_faults` | faults that wait for the moment at which replication is sensitive   |
| `broker/`         | one broker: the node, its connections, its link to NATS, its peers  |
| `checks/`         | the invariants of each broker, and those across brokers             |
| `inspector`       | read-only access to a node's private state                          |
| `rows`            | decodes the rows of batches                                         |

The project's own load and the runs over many seeds are in `tests/sim`.
"""
