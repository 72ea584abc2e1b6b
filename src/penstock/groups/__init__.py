"""Consumer groups: committed offsets and membership, as rows of the log and in memory.

| module       | content                                                   |
|--------------|-----------------------------------------------------------|
| `rows`       | committed offsets as rows of the stream `__offsets`       |
| `offsets`    | the latest offset of each group, stream and partition     |
| `membership` | members and their assignment                              |
"""
