"""Python for contracts: dataclasses, enums, clients, handlers, publishers and subscribers.

| module      | content                                                             |
|-------------|---------------------------------------------------------------------|
| `generate`  | a linked program as Python files                                    |
| `files`     | writes them to the disk, and over nothing that was not generated    |
| `load`      | imports them without a file                                         |
| `names`     | Python's names for those of a contract                              |
| `text`      | literals and docstrings: nothing of a contract becomes code         |
| `module`    | one generated module: its names, imports and lines                  |
| `types`     | annotations, and the specs that Thrift's C code reads               |
| `values`    | constants as expressions                                            |
| `structs`   | enums, structs, unions, exceptions, typedefs, constants             |
| `services`  | services: description, handler, clients                             |
| `scopes`    | scopes: description, publisher, subscriber                          |
| `keys`      | which field is a message's key                                      |

The generated code needs `penstock.frugal`, with the extra `frugal`.
"""
