"""What consumers keep in the log: how it is written there, and what it comes to.

| module    | what it holds                                            |
|-----------|----------------------------------------------------------|
| `rows`    | committed offsets as rows of the stream `__offsets`       |
| `offsets` | the latest offset of each group, stream and partition     |
| `membership` | who is in a group, and has which partition             |
"""
