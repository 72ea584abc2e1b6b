"""Schemas of streams: what values mean, which changes of a schema are compatible, and values as typed Arrow columns.

Pure: bytes in, Arrow out. Storing the rows of `__schemas` is for the node, asking for them is for the client.
`hot.typed_columns` and the readers beside it do the work per value.

| module          | content                                                                              |
|-----------------|--------------------------------------------------------------------------------------|
| `kinds`         | `Schema`: kind, text, hash; its plan, its decoder; `compatible`                      |
| `registry`      | `StreamSchemas`: which subjects of a stream have which type, in which versions       |
| `as_json`       | schemas of streams as JSON, for other machines and for archives                      |
| `rows`          | schemas as rows of the stream `__schemas`                                            |
| `kept`          | the schemas of all streams, from these rows                                          |
| `registering`   | what a registration leads to: which versions, or why it is refused                   |
| `contracts`     | contracts as schemas, by `penstock.idl`                                              |
| `compatibility` | the rules of Arrow, JSON Schema and Avro                                             |
| `thrift`        | plans of a contract's types; Thrift and Frugal values                                |
| `protobuf`      | plans of a contract's messages                                                       |
| `avro`          | plans of Avro schemas                                                                |
| `json_values`   | plans of Arrow schemas and JSON Schemas, for JSON values                             |
| `constants`     | defaults of fields, encoded                                                          |
| `decoding`      | `Decoder`: a batch of values to columns, and which rows were refused for what reason |
| `explaining`    | why one value is refused: the path of its field, what is expected, what was found    |
| `row_decoder`   | `RowDecoder`: rows of a stream, each by the schema of its subject and headers        |
| `projection`    | columns of one version as those of another                                           |
| `report`        | `DecodeReport`: counts of decoded and refused rows, to be added up                   |
| `plans`         | `Plan`: the columns of a type; which Arrow type each has                             |
"""
