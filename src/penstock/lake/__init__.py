"""The lake: streams as tables of Parquet files, which an archive fills. Without Spark, NumPy and a terminal.

`penstock.ops.archive` runs an archive on one machine, `penstock.spark` on Spark; both run the same loop over the same
files, so one continues where the other stopped.

| package     | content                                                                                          |
|-------------|--------------------------------------------------------------------------------------------------|
| `archiving` | the archive: plan, loop, the tasks of a batch, decoding                                          |
| `tables`    | the folder of an archive, its manifest, and its table as Parquet, Delta or Iceberg               |
| `reading`   | what is read of a log: streams, ranges, columns; lost messages and logs that were cut            |
| `progress`  | progress reports of jobs, and the pace of those that run continuously                            |
"""
