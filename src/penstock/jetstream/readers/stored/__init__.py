"""Consumers with acks, and durable ones, at the broker that leads their stream: what is stored, and what waits for it.

| module        | what it does                                                            |
|---------------|-------------------------------------------------------------------------|
| `led`         | one consumer: its state, and what waits until its rows are committed    |
| `writes`      | writes the changes of all consumers of a partition, one batch at a time |
| `leaderships` | reads the consumers when a leadership begins, and ends with it          |
| `acks`        | applies the acks of one read of the connection                          |
| `again`       | delivers messages again                                                 |
| `dead_letters` | has messages that are given up stored in another stream                |
| `advisories`  | tells who listens what happened to messages and consumers               |
"""
