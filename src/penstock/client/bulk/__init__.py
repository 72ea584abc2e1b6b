"""Large reads and writes for programs that split a log, such as Spark and the CLI: offset ranges, raw batches,
checks.
"""
