"""The source through Spark Connect: a client that has no Java of its own talks to a Spark elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import penstock
from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.spark.reading.test_source import filled

TIMEOUT_S = 600

# A process of its own: one that has a classic session cannot have one of Connect, too.
SCRIPT = """
import sys
from pyspark.sql import SparkSession
from penstock.spark import register

servers, folder = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
assert "connect" in type(spark).__module__
register(spark)
options = {"servers": servers, "stream": "connect"}
rows = spark.read.format("penstock").options(**options).load()
print("rows", rows.count(), "last", rows.selectExpr("max(offset)").collect()[0][0])
spark.sql(f"CREATE TEMPORARY VIEW messages USING penstock OPTIONS (servers '{servers}', stream 'connect')")
print("sql", spark.sql("SELECT count(*) FROM messages WHERE key = X'6B31'").collect()[0][0])
query = (
    spark.readStream.format("penstock").options(startingOffsets="earliest", **options).load()
    .writeStream.format("parquet").option("path", folder + "/out").option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print("streamed", spark.read.parquet(folder + "/out").count())

from penstock.base.errors import ConfigError
from penstock.spark import archive, run, table

def key_and_value(rows):
    return rows.select("key", "value")

job = {"spark": spark, "servers": servers, "once": True}
print("table", table("connect", folder + "/table", buckets=2, **job).rows)
try:
    run(key_and_value, "connect", folder + "/delta", **job)
except ConfigError as error:
    print("delta", error)
done = run(key_and_value, "connect", folder + "/parquet", format="parquet", max_batch=1_500, **job)
print("parquet", done.rows, done.batches, spark.read.parquet(folder + "/parquet").count())
done = run(key_and_value, "connect", "copied", checkpoint=folder + "/to-stream", **job)
print("copied", done.rows)

done = archive("decoded", folder + "/decoded", decode="json", **job)
data = spark.read.parquet(folder + "/decoded").orderBy("offset").selectExpr("data.*").collect()
print("decoded", done.rows, done.rejected, [row.asDict() for row in data])
spark.stop()
"""


@needs_time
def test_streams_are_read_through_connect(client: penstock.Client, broker: BrokerProcess, tmp_path: Path) -> None:
    filled(client, "connect", 1_000, partitions=2)
    client.create_stream("copied", "copied")
    client.create_stream("decoded", "decoded")
    client.append("decoded", [{"value": b'{"n": 7, "at": "2026-11-20 10:00:00"}'}, {"value": b"{"}])
    paths = {"PYTHONPATH": str(Path(penstock.__file__).parents[1]), "PYSPARK_PYTHON": sys.executable}
    environment = os.environ | paths
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, broker.client_address, str(tmp_path)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    *said, delta, parquet, copied, decoded = answer.stdout.splitlines()
    assert said == ["rows 2000 last 999", "sql 286", "streamed 2000", "table 2000"]
    assert delta.startswith("delta format: Spark Connect cannot write a Delta table")
    assert parquet == "parquet 2000 2 2000"
    assert (copied, len(client.to_table("copied"))) == ("copied 2000", 2_000)
    assert decoded == "decoded 2 1 [{'at': '2026-11-20 10:00:00', 'n': 7}, {'at': None, 'n': None}]"
