"""Stream orders through Spark (structured streaming): totals of each customer, as Parquet files, each batch once.

    python examples/spark_stream.py totals

Needs the extras: `pip install '.[spark,java]'`. Run it again: only new orders are read. PENSTOCK_SERVER names the
broker. For a cluster: `session("spark://HOST:7077")`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pyspark.sql import functions as f

from penstock.spark import session


def main() -> None:
    """Read what is new in the stream, write it, and print the totals so far."""
    parser = argparse.ArgumentParser(description="Stream orders to Parquet files, and print the totals of customers.")
    parser.add_argument("folder", type=Path, help="where the Parquet files and the checkpoint are")
    folder = parser.parse_args().folder
    spark = session(name="orders")
    orders = spark.readStream.format("penstock").option("stream", "shop").option("startingOffsets", "earliest").load()
    parsed = orders.select(
        "offset", f.from_json(f.col("value").cast("string"), "customer STRING, total BIGINT").alias("order")
    )
    query = (
        parsed.select("offset", "order.*")
        .writeStream.format("parquet")
        .option("path", str(folder / "orders"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)  # all that is there now; without it, until the query is stopped
        .start()
    )
    query.awaitTermination()
    totals = spark.read.parquet(str(folder / "orders")).groupBy("customer").agg(f.sum("total").alias("total"))
    for row in totals.orderBy("customer").collect():
        print(f"{row.customer}: {row.total}")
    spark.stop()


if __name__ == "__main__":
    main()
