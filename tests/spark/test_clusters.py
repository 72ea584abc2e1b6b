"""What was noted in one cluster is not gone on with in another one, though names, ids and epochs are the same."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import penstock
from penstock.lake.reading.data_loss import DataLossError
from penstock.spark import archive, audit, brokers, replay, table
from tests.broker_process import running_broker
from tests.extent import needs_time
from tests.spark.reading.test_source import filled, run

OTHER = "is of another cluster"


@needs_time
def test_a_cluster_that_was_made_anew_is_another_one(spark: SparkSession, tmp_path: Path) -> None:
    data, lake, kept = tmp_path / "data", tmp_path / "lake", tmp_path / "table"
    with running_broker(data) as broker:
        go: dict[str, Any] = {"spark": spark, "servers": broker.client_address}

        def fill(rows: int) -> None:
            with penstock.connect(broker.client_address) as client:
                filled(client, "source", rows)
                client.create_stream("target", "target.in")

        fill(100)
        archive("source", lake, **go)
        table("source", kept, **go)
        replay(lake, "target", subject="target.in", **go)
        assert run(spark, broker, tmp_path, "source")[-1][1] == 100
        assert broker.stop() == 0
        shutil.rmtree(data)
        broker.listen = broker.client_address
        broker.start()
        brokers._clients.clear()
        fill(150)
        with pytest.raises(DataLossError, match=OTHER):
            archive("source", lake, fail_on_data_loss=False, **go)
        with pytest.raises(DataLossError, match=OTHER):
            table("source", kept, fail_on_data_loss=False, **go)
        with pytest.raises(DataLossError, match=OTHER):
            replay(lake, "target", subject="target.in", **go)
        with pytest.raises(DataLossError, match=OTHER):
            audit("source", against=lake, **go)
        with pytest.raises(PySparkException, match=OTHER):
            run(spark, broker, tmp_path, "source", failOnDataLoss=False)
        with penstock.connect(broker.client_address) as client:
            assert client.stream("source").partitions[0].archives == {}
