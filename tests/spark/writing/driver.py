"""A Spark driver as a process for tests to kill: copies the present messages of a stream to another stream.

python -m tests.spark.writing.driver SERVERS FROM TO CHECKPOINT
"""

from __future__ import annotations

import sys

from penstock.spark import session


def main(servers: str, source: str, target: str, checkpoint: str) -> None:
    spark = session("local[2]", name="driver", config={"spark.driver.extraJavaOptions": "-XX:+UseSerialGC"})
    rows = spark.readStream.format("penstock").options(
        servers=servers, stream=source, startingOffsets="earliest", maxOffsetsPerTrigger=500
    )
    sink = rows.load().select("key", "value").repartition(2).writeStream.format("penstock")
    sink = sink.options(servers=servers, stream=target).option("checkpointLocation", checkpoint)
    sink.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
