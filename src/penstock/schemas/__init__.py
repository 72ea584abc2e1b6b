"""Schemas of streams: what values mean, which changes of a schema are compatible, and values as typed Arrow columns.

Pure: bytes in, Arrow out. Where schemas are kept, and who asks for them, is for the client. `hot.typed_columns` and the
readers beside it do the work per value.

| module          | content                                                                              |
|-----------------|--------------------------------------------------------------------------------------|
| `kinds`         | `Schema`: kind, text, hash; its plan, its decoder; `compatible`                      |
| `registry`      | `StreamSchemas`: which subjects of a stream have which type, in which versions       |
| `contracts`     | contracts as schemas, by `penstock.idl`                                              |
| `compatibility` | the rules of Arrow, JSON Schema and Avro                                             |
| `thrift`        | plans of a contract's types; Thrift and Frugal values                                |
| `protobuf`      | plans of a contract's messages                                                       |
| `avro`          | plans of Avro schemas                                                                |
| `json_values`   | plans of Arrow schemas and JSON Schemas, for JSON values                             |
| `constants`     | defaults of fields, encoded                                                          |
| `decoding`      | `Decoder`: a batch of values to columns, and which rows were refused for what reason |
| `plans`         | `Plan`: the columns of a type; which Arrow type each has                             |
"""
