"""Typed services over NATS: RPC and publish/subscribe from a contract, byte-compatible with Frugal.

Generated code and `load` give dataclasses, clients, publishers and subscribers; this package runs them.

| module       | content                                                                                       |
|--------------|-----------------------------------------------------------------------------------------------|
| `contracts`  | descriptions of services and scopes that generated code carries                               |
| `context`    | the context of a call or message: correlation id, headers, deadline                           |
| `middleware` | what a middleware is, and the order in which several run                                      |
| `frames`     | frames of frugal-v0, and which header is what of a context                                    |
| `codecs`     | values and messages as Thrift's binary, compact and JSON protocols                            |
| `errors`     | what goes wrong with a call or a message                                                      |
| `framing`    | a request or answer as one message: frugal-v0, and what a framing is                          |
| `native`     | the native framing: which NATS header is what of a context                                    |
| `client`     | base classes of clients, asyncio and blocking                                                 |
| `processor`  | the server's core: requests in, answers out                                                   |
| `server`     | a server on NATS subjects; `workers`: its bounded concurrency; `discovery`: `nats micro ls`   |
| `nats_transport`, `http_transport`, `local_transport` | what carries a client's requests                     |
| `shipped`    | middleware: logging, metrics, tracing, authentication, retry, deadline, circuit breaker       |
"""
