"""Subject index: which subjects a sealed segment holds, in one file beside it (ADR 82).

Rules: the file can be deleted and is rebuilt from its segment, of which it names the size and the last checksum: an
index of other messages is never used. Every part has a CRC-32C and is checked before use. It begins as an Arrow stream,
so any Arrow reader shows its table: `subject` in byte order, `count`, `first_offset`, `last_offset`, without nulls.

    | schema message, 296 bytes | blocks: Arrow record batches, LZ4  | end of stream, 8 bytes |
    | filter: pages of 256 bytes | directory | trailer, 96 bytes |

| module         | purpose                                                                       |
|----------------|-------------------------------------------------------------------------------|
| `reading`      | finds one subject or a range of subjects in a file, reading what it needs     |
| `writing`      | writes a file from sorted blocks                                              |
| `summing`      | sums up rows of a log by subject, in sorted runs                              |
| `blocks`       | one block, as Arrow message and as table in memory                            |
| `layout`       | trailer and directory, byte by byte                                           |
| `kept_filters` | filters in memory, under one budget of the broker                             |

A look-up of one subject reads the trailer (once for each segment), one page of the filter and, if that says yes, the
directory and one block. Where the filter is kept in memory, it reads nothing unless that says yes.
"""
