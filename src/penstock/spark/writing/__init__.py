"""Writing exactly once, to streams and to Delta tables.

`source` hands the two writers of streams to Spark; the job `run` writes its result as a Delta table, and jobs check
columns by `rows`.
"""
