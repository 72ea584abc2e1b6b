"""The process of one broker: event loop, sockets, NATS, disk threads, around the node (`penstock.node`).

`serve` starts everything; `driver.Driver` passes events to the node and carries out its steps. The sub-packages:

| package         | purpose                                                              |
|-----------------|----------------------------------------------------------------------|
| `supervision`   | starts and watches broker processes                                  |
| `observability` | HTTP port: health, metrics; OpenTelemetry                            |
| `socket_api`    | server of the socket API                                             |
| `peers`         | connections to other brokers                                         |
| `nats`          | connection to NATS, embedded nats-server                             |
| `transport`     | bytes of a connection, TLS                                           |
| `config`        | settings, checks of settings and of the data directory               |
| `security`      | secrets, certificates, logins to NATS                                |
| `process`       | disk threads, signals, systemd                                       |
"""
