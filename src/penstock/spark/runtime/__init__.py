"""Requirements of Spark itself: a Java, supported versions of PySpark and pyarrow, and a session.

Nothing here knows of streams. `source`, writers and jobs call it, and so do the commands that start Spark.
"""
