"""A job's streaming query, from its start to its end: what it tells meanwhile, and why it failed.

Rules: whoever interrupts a job has its query stopped; the next run goes on from the query's checkpoint. Spark wraps
what went wrong in the traces of several processes: told is what our own code, or the user's, said.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.spark.jobs import BatchDone, Report
from penstock.spark.places import LOG_STARTS

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.readwriter import DataStreamWriter


class JobError(OperationalError):
    """A job's query has failed."""


def follow(writer: DataStreamWriter, *, once: bool, trigger_s: float, report: Report) -> tuple[int, int]:
    """Run a query until all that is there is done, or, unless `once`, until it is stopped; its batches and messages.

    JobError.
    """
    from pyspark.errors import PySparkException

    trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": f"{trigger_s * 1_000:.0f} ms"}
    try:
        query = writer.trigger(**trigger).start()
        seen = Seen(report)
        try:
            while not query.awaitTermination(limits.JOB_LOOK_S):
                seen.look(query.recentProgress)
            seen.look(query.recentProgress)
        finally:
            if query.isActive:
                query.stop()
    except PySparkException as error:
        raise JobError(reason(str(error))) from error
    return seen.batches, seen.rows


class Seen:
    """What of a query's progress was told: Spark keeps that of the last hundred batches."""

    def __init__(self, report: Report) -> None:
        self.batches = 0
        self.rows = 0
        self._report = report
        self._last = -1

    def look(self, recent: Sequence[StreamingQueryProgress]) -> None:
        """Count and report the batches of `StreamingQuery.recentProgress` that are new and read something."""
        for one in recent:
            rows = one.numInputRows  # not one["numInputRows"], which Spark Connect leaves out
            if one.batchId <= self._last or not rows:
                continue
            self._last = one.batchId
            self.batches += 1
            self.rows += rows
            self._report(BatchDone(self.batches, rows, 0, one.batchDuration / 1_000, _lag(one)))


def _lag(progress: StreamingQueryProgress) -> int:
    """The messages between where a batch ended and where the log did; -1: not known."""
    behind = 0
    for source in progress.sources:
        ends: list[Any] = [source.endOffset, source.latestOffset]
        done, there = (json.loads(one) if isinstance(one, str) else one for one in ends)
        if not (isinstance(done, dict) and isinstance(there, dict)):
            return -1
        behind += sum(_behind(done.get(stream, {}).get("offsets", {}), one) for stream, one in there.items())
    return behind


def _behind(done: Mapping[str, int], there: Mapping[str, Any]) -> int:
    """The messages of a stream that the log still holds behind where a batch ended, as offsets count them."""
    starts = there.get(LOG_STARTS, {})
    return sum(
        max(0, end - max(starts.get(number, 0), done.get(number, 0))) for number, end in there["offsets"].items()
    )


def reason(text: str) -> str:
    """What went wrong, in one line: the last line of a Python trace, without the error's module; else the first."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        name, sign, said = line.partition(": ")
        kind = name.rpartition(".")[2]
        is_ours = name.startswith("penstock.")  # of which not all are called errors
        is_name = sign and name.replace(".", "").replace("_", "").isalnum()
        is_error = is_name and (is_ours or kind.endswith(("Error", "Exception")))
        if is_error and not name.startswith(("org.", "java.", "py4j.")):
            return said if is_ours else f"{kind}: {said}"
    if lines and lines[0].startswith("An error occurred while calling"):  # py4j's, before Java's own
        lines = [line.lstrip(": ") for line in lines[1:]]
    if not lines:
        return "Spark says nothing of it"
    return re.sub(r"^\[STREAM_FAILED\].*terminated with exception: | SQLSTATE: \w+$", "", lines[0])
