"""A stream through `transformWithState`: workers talk to the state store with protobuf, which the extra brings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import penstock
from tests.broker_process import BrokerProcess
from tests.extent import needs_time

ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class Counting(StatefulProcessor):
    """How many messages each key had so far."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._count = handle.getValueState("count", "n LONG")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N803 (Spark's)
        before = self._count.get()
        now = (before[0] if before else 0) + sum(1 for _ in rows)
        self._count.update((now,))
        yield Row(key=key[0], n=now)

    def close(self) -> None:
        pass


@needs_time
def test_state_is_kept_from_batch_to_batch(
    client: penstock.Client, spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    client.create_stream("stateful", "stateful.in")
    client.append("stateful", [{"key": b"a" if one % 3 else b"b", "value": b"v"} for one in range(30)])
    source = spark.readStream.format("penstock").options(
        servers=broker.client_address, stream="stateful", startingOffsets="earliest", maxOffsetsPerTrigger=15
    )
    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKS)
    seen: list[Row] = []

    def take(rows: DataFrame, _: int) -> None:
        seen.extend(rows.collect())

    try:
        keys = source.load().selectExpr("CAST(key AS STRING) AS key").groupBy("key")
        counted = keys.transformWithState(Counting(), "key STRING, n LONG", "update", "none")
        sink = counted.writeStream.outputMode("update").foreachBatch(take).option("checkpointLocation", str(tmp_path))
        sink.trigger(availableNow=True).start().awaitTermination()
    finally:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", before)
    assert sorted((row.key, row.n) for row in seen) == [("a", 10), ("a", 20), ("b", 5), ("b", 10)]
