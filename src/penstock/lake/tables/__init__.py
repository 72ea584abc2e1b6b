"""Tables of a lake: an archive as a folder with a manifest and a table of Parquet files, in one of three table formats.

Jobs call it, and `penstock.spark.reading.history`: `formats` opens the table of the archive that `manifest` describes.

Rules: the archive's table holds the end offset of each partition. One commit makes files and end offsets durable, so
the next run continues from the table's end offsets after any crash. No file with rows is deleted: a file without a
commit is not part of the table.

| file                            | content                                                           |
|---------------------------------|-------------------------------------------------------------------|
| `date=2026-11-20/topic=orders/` | rows, by the UTC date of `timestamp` and by stream                |
| `_penstock/archive.json`        | table format, streams, decoder                                    |
| `_rejects/`                     | another table: values that could not be decoded, with the reasons |
"""
