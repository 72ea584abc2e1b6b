"""Contracts in an IDL: Frugal, Thrift and Protobuf files as one model; code, checks and pages that are made of it.

Pure: files are read through a given function, so a test needs none. Nothing here knows NATS or a stream.

| module          | content                                                                              |
|-----------------|--------------------------------------------------------------------------------------|
| `model`         | the model: what a front end reads, and generators, checks and decoders of values use |
| `compatibility` | breaking changes between two versions, each by a named rule                          |
| `page`          | a page for people, as HTML or Markdown                                               |
"""
