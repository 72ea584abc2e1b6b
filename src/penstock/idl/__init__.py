"""Contracts in an IDL: Frugal, Thrift and Protobuf files as one model; code, checks and pages that are made of it.

Pure: files are read through a given function, so a test needs none. Nothing here knows NATS or a stream.

| module          | content                                                                              |
|-----------------|--------------------------------------------------------------------------------------|
| `model`         | the model: what a front end reads, and generators, checks and decoders of values use |
| `parser`        | `parse`: the text of a Frugal or Thrift file as a document; over `lexer`             |
| `linker`        | `link`: a file and all that it includes as a program; over `checks`, `constants`     |
| `constants`     | `find_constant`: what the name of a constant or of an enum's value means             |
| `annotations`   | `near_misses`: names that are likely mistyped; `check_values`                        |
| `streams`       | `check_streams`: contradictions of streams, keys and splits; `Keys` finds a key       |
| `files`         | which files an include may name; `FileReader` reads them from the disk               |
| `printer`       | `document_text`: a document as canonical IDL text                                    |
| `protobuf`      | `from_descriptor_set`: the second front end                                          |
| `python`        | `generate`: a program as Python files; `load`: a contract as a module at run time    |
| `compatibility` | `compare`: changes between two versions, each by a named rule; `RULES`               |
| `page`          | `page`: a page for people, as HTML or Markdown                                       |
| `mistakes`      | `IdlError`: all mistakes of a run, with their places                                 |
"""
