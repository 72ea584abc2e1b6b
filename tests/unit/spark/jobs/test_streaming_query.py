"""What a job tells of its streaming query is what Spark's progress says, on Spark Connect too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryProgress

from penstock.lake.progress import BatchDone
from penstock.spark.jobs.streaming_query import Seen


def progress(
    batch: int, rows: int, done: dict[str, int], log_end: dict[str, int], **others: Any
) -> StreamingQueryProgress:
    """As a client of Spark Connect has it: with the rows of each source, and none of the batch."""
    end = {"epochs": dict.fromkeys(done, 1), "id": 7, "offsets": done}
    latest = {"epochs": dict.fromkeys(log_end, 1), "id": 7, "offsets": log_end, **others}
    source = {
        "description": "penstock",
        "startOffset": None,
        "endOffset": json.dumps({"orders": end}),
        "latestOffset": json.dumps({"orders": latest}),
        "numInputRows": rows,
        "inputRowsPerSecond": 1.0,
        "processedRowsPerSecond": 1.0,
    }
    sink = {"description": "FileSink", "numOutputRows": -1}
    return StreamingQueryProgress.fromJson(
        {
            "id": "944bbc12-6ff1-41aa-b5de-5e00eaa47a6a",
            "runId": "fad99c76-7ffa-4dfe-8724-8dbdba497630",
            "name": None,
            "timestamp": "2026-11-27T23:49:51.710Z",
            "batchId": batch,
            "batchDuration": 1_500,
            "stateOperators": [],
            "sources": [source],
            "sink": sink,
        }
    )


def seen(*batches: StreamingQueryProgress) -> tuple[Seen, list[BatchDone]]:
    told: list[BatchDone] = []
    found = Seen(told.append)
    found.report_new(batches)
    return found, told


def test_messages_are_counted_where_spark_gives_those_of_each_source_alone() -> None:
    found, told = seen(
        progress(0, 700, {"0": 350, "1": 350}, {"0": 1_000, "1": 1_000}),
        progress(1, 0, {"0": 350, "1": 350}, {"0": 1_000, "1": 1_000}),
        progress(2, 600, {"0": 650, "1": 650}, {"0": 1_000, "1": 1_000}),
    )
    assert (found.batches, found.rows) == (2, 1_300)
    assert told == [BatchDone(1, 700, 0, 1.5, 1_300), BatchDone(2, 600, 0, 1.5, 700)]
    found.report_new([progress(2, 600, {"0": 650}, {"0": 1_000})])
    assert (found.batches, found.rows) == (2, 1_300)


@pytest.mark.parametrize(
    ("done", "starts", "lag"),
    [
        ({"0": 100, "1": 100}, {"0": 0, "1": 0}, 1_800),
        ({"0": 100, "1": 100}, {"0": 40, "1": 900}, 1_000),
        ({"0": 1_000, "1": 100}, {"0": 0, "1": 1_000}, 0),
        ({"0": 1_000}, {"0": 0, "1": 600}, 400),  # partition 1 was added, and nothing of it is done yet
    ],
)
def test_what_retention_has_deleted_is_no_lag(done: dict[str, int], starts: dict[str, int], lag: int) -> None:
    _, told = seen(progress(0, 5, done, {"0": 1_000, "1": 1_000}, log_starts=starts))
    assert [one.lag for one in told] == [lag]
