"""Consumers with acks, one at a time and without I/O (see ADR 107).

| module   | content                                                                           |
|----------|-----------------------------------------------------------------------------------|
| `config` | the numbers of a consumer's config that the core needs                            |
| `rows`   | the rows of a log of consumers: keys and values                                   |
| `state`  | one consumer: what it may deliver, acks in, changed rows out, what is due          |
| `fold`   | from the last row of each key to the consumers of a partition                     |

The messages in hand are a table in compiled code, `penstock.hot.pending`.
"""
