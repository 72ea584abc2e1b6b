"""Reading streams: from the planning of ranges on the driver to the fetching of a range in a task.

`source` hands the two readers to Spark, jobs plan and fetch by themselves, and users call `read` from `penstock.spark`.
"""
