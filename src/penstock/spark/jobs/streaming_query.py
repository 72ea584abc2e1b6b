"""Runs a job's streaming query until it ends, reports its progress, and extracts the reason of a failure.

Rules: an interrupted job stops its query; the next run continues from the query's checkpoint. Spark wraps an error in
the traces of several processes; only the message of Penstock's or the user's code is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.lake.progress import BatchDone, Report
from penstock.spark.options.positions import LOG_STARTS

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class JobError(OperationalError):
    """A job's streaming query has failed."""


def follow(writer: DataStreamWriter, *, once: bool, trigger_s: float, report: Report) -> tuple[int, int]:
    """Run a query until it is stopped; with `once`, until it has processed the present messages.

    Return its number of batches and of messages. Raise JobError if it fails.
    """
    from pyspark.errors import PySparkException

    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{trigger_s * 1_000:.0f} ms"}
    try:
        query = writer.trigger(**trigger).start()
        seen = Seen(report)
        try:
            while not query.awaitTermination(limits.JOB_POLL_S):
                seen.report_new(query.recentProgress)
            seen.report_new(query.recentProgress)
        finally:
            if query.isActive:
                query.stop()
    except PySparkException as error:
        raise JobError(reason(str(error))) from error
    return seen.batches, seen.rows


class Seen:
    """Tracks which batches of a query were reported. Spark keeps the progress of the last hundred batches."""

    def __init__(self, report: Report) -> None:
        self.batches = 0
        self.rows = 0
        self._report = report
        self._last = -1

    def report_new(self, recent: Sequence[StreamingQueryProgress]) -> None:
        """Count and report the new batches of Spark's `recentProgress` that have read messages."""
        for one in recent:
            rows = one.numInputRows  # not one["numInputRows"], which Spark Connect leaves out
            if one.batchId <= self._last or not rows:
                continue
            self._last = one.batchId
            self.batches += 1
            self.rows += rows
            self._report(BatchDone(self.batches, rows, 0, one.batchDuration / 1_000, _lag(one)))


def _lag(progress: StreamingQueryProgress) -> int:
    """Return the lag of a query in messages; -1 if unknown."""
    behind = 0
    for source in progress.sources:
        ends: list[Any] = [source.endOffset, source.latestOffset]
        done, there = (json.loads(one) if isinstance(one, str) else one for one in ends)
        if not (isinstance(done, dict) and isinstance(there, dict)):
            return -1
        behind += sum(_behind(done.get(stream, {}).get("offsets", {}), one) for stream, one in there.items())
    return behind


def _behind(done: Mapping[str, int], there: Mapping[str, Any]) -> int:
    """Return the number of a stream's offsets from a batch's end to the high watermark, without deleted ones."""
    starts = there.get(LOG_STARTS, {})
    return sum(
        max(0, end - max(starts.get(number, 0), done.get(number, 0))) for number, end in there["offsets"].items()
    )


def reason(text: str) -> str:
    """Return an error in one line: the last error of a Python trace, without its module; else the first line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, sign, said = line.partition(": ")
        kind = name.rpartition(".")[2]
        is_ours = name.startswith("penstock.")  # not all of Penstock's error classes end in Error
        is_name = sign and name.replace(".", "").replace("_", "").isalnum()
        is_error = is_name and (is_ours or kind.endswith(("Error", "Exception")))
        if is_error and not name.startswith(("org.", "java.", "py4j.")):
            return said if is_ours else f"{kind}: {said}"
    if lines and lines[0].startswith("An error occurred while calling"):  # py4j's line before Java's message
        lines = [line.lstrip(": ") for line in lines[1:]]
    if not lines:
        return "Spark gives no reason"
    return re.sub(r"^\[STREAM_FAILED\].*terminated with exception: | SQLSTATE: \w+$", "", lines[0])
