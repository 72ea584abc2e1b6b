"""Writing streams, exactly once: `df.write.format("penstock")` and `df.writeStream.format("penstock")`.

Rules: a task stages its rows (a transaction buffer) by partition, invisible to readers, and returns their positions to
the driver. The driver asks each partition's leader to publish the staged rows of all tasks, in order, as one batch of
the query. The leader publishes a batch once, however often the request is repeated. Nothing is rolled back: staged rows
that are not published expire.

Theory: Spark replays a batch of a query under the same number until the batch is committed, and a replay may distribute
rows over tasks in another way. Spark retries tasks, and may run a task twice at once; a driver may crash between any
two steps. So tasks and rows cannot be deduplicated, but (query id, batch number) can. The log holds this pair with
the rows, and a leader that finds the pair answers that the batch is a duplicate.

| failure of               | consequence                                                                      |
|--------------------------|----------------------------------------------------------------------------------|
| a task                   | another attempt stages the rows again; those of the first are never published    |
| the driver, while staging | the batch is planned and staged again                                           |
| … while publishing       | the batch is staged again; partitions that have it answer "duplicate"            |
| a leader                 | the next leader has the staged rows, and knows the published batches             |
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.access import Operation
from penstock.base.errors import OperationalError
from penstock.base.staged import once_id, staged_name
from penstock.client.append.staging import Staged
from penstock.client.blocking.client import Client
from penstock.lake.reading import permissions
from penstock.lake.reading.data_loss import warn
from penstock.messages import StreamInfo
from penstock.spark import brokers
from penstock.spark.options.options import SinkOptions
from penstock.spark.writing.query_ids import BATCH_ID, QUERY_ID, batch_id_of, query_id_of
from penstock.spark.writing.rows import (
    CASE_SENSITIVE,
    BadRowsError,
    Share,
    named,
    shares,
    streams_of,
    with_valid_headers,
)

_log = logging.getLogger(__name__)

STAGE_BYTES = 16 * 1024 * 1024
"""Buffered bytes of one partition at which its rows are staged; STAGE_ROWS is the same limit in rows."""
STAGE_ROWS = 65_536
STAGE_BYTES_ALL = 128 * 1024 * 1024
"""Buffered bytes of all partitions of a task at which the partition with the most of them is staged."""
_PUBLISH_AT_ONCE = 8
_PUBLISHED_A_SECOND_MIN = 10_000  # rows per second; extends the time-out of a large batch

_APPLICATIONS = uuid.UUID("0d5bd4b2-4a1c-4a3e-9d5e-6a1f2c3b4d5e")
"""UUID namespace that converts `txnAppId` to a query id; it must never change."""


def application_id(name: str) -> uuid.UUID:
    """Return the query id that the brokers store for a `txnAppId`."""
    return uuid.uuid5(_APPLICATIONS, name)


class Batch(NamedTuple):
    """Identity of a write, by which the leader deduplicates it."""

    query_id: str
    batch_id: int


@dataclass
class StagedMessage(WriterCommitMessage):
    """Result of a task: the positions of its staged rows. It has plain values, because Spark pickles it."""

    query_id: str
    batch_id: int
    task: int
    staged: list[dict[str, Any]] = field(default_factory=list)
    rows: int = 0
    headers_left_out: int = 0  # with invalidHeaders=drop


class _Writing:
    """Common part of the writers. Spark has an instance on the driver and copies it to the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    # In a task

    def _batch(self, context: TaskContext) -> Batch:
        raise NotImplementedError

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: stage its rows, and return their positions. Raise OperationalError outside a task of Spark."""
        context = TaskContext.get()
        if context is None:
            raise OperationalError("rows can be staged only in a task of Spark: write with df.write")
        batch = self._batch(context)
        staging = _Staging(self._client(), self._options, batch)
        is_case_sensitive = context.getLocalProperty(CASE_SENSITIVE) == "true"
        for rows in iterator:
            staging.take(named(rows, is_case_sensitive=is_case_sensitive))
        staged = staging.finish()
        return StagedMessage(*batch, context.partitionId(), staged, staging.rows, staging.headers_left_out)

    # On the driver

    def _publish(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        found = sorted((one for one in messages if isinstance(one, StagedMessage)), key=lambda one: one.task)
        work: dict[tuple[str, int], list[Staged]] = {}
        for message in found:
            for one in message.staged:
                work.setdefault((one["stream"], one["partition"]), []).append(Staged.from_dict(one["staged"]))
        if not work:
            return
        batch = Batch(found[0].query_id, found[0].batch_id)
        if left_out := sum(one.headers_left_out for one in found):
            what = f"batch {batch.batch_id} of query {batch.query_id}"
            warn(f"{what}: {left_out} headers were left out, as the option invalidHeaders says")
        client = self._client()
        with ThreadPoolExecutor(min(_PUBLISH_AT_ONCE, len(work)), "penstock-publish") as threads:
            done = [
                (staged, threads.submit(self._publish_one, client, stream, partition, batch, staged))
                for (stream, partition), staged in sorted(work.items())
            ]
            in_log = [staged for staged, future in done if future.result()]
        if self._options.republish:
            for staged in in_log:
                self._republish(client, staged)

    def _republish(self, client: Client, staged: Sequence[Staged]) -> None:
        """Publish the rows of a batch that is in the log also on NATS, to the option's prefix and their subject.

        The messages are read from the staged rows, so they are exactly those of this batch. They are not acked, and a
        batch that Spark replays is published again: delivery is at least once. They pass through the driver one by one.
        """
        prefix, timeout_s = self._options.republish, self._options.timeout_s
        for one in staged:
            name = staged_name(one.stream_id)
            for batch in one.batches:
                start, end = batch.base_offset, batch.end_offset
                for message in client.messages(name, start, end=end, partition=one.partition, timeout=timeout_s):
                    subject, headers = f"{prefix}.{message.subject}", dict(message.headers)
                    client.publish_nowait(subject, message.value, key=message.key, headers=headers, ack="none")
        client.flush(timeout=timeout_s)

    def _publish_one(self, client: Client, stream: str, partition: int, batch: Batch, staged: list[Staged]) -> bool:
        """Publish a batch into one partition. Return True if its rows are in the log, from now on or already."""
        rows = sum(one.rows for one in staged)
        published = client.staging.publish(
            stream,
            staged,
            query_id=batch.query_id,
            batch_id=batch.batch_id,
            partition=partition,
            timeout=self._options.timeout_s + rows / _PUBLISHED_A_SECOND_MIN,
        )
        if published.overtaken:
            self._overtaken(f"stream {stream}, partition {partition}, has a later batch than {batch.batch_id}")
            return False
        if published.duplicate and published.rows not in (None, rows):
            text = f"{stream}, partition {partition}, has batch {batch.batch_id} with {published.rows} rows, not {rows}"
            warn(f"{text}: if an older checkpoint was restored, rows are not written")
            return False
        if published.duplicate:
            _log.info("%s, partition %d, has batch %d of query %s already", stream, partition, *reversed(batch))
        return True

    def _overtaken(self, text: str) -> None:
        """Handle a partition that already has a later batch of the same query: warn that nothing is written."""
        warn(f"{text}: nothing of it is written")

    def _client(self) -> Client:
        return brokers.client(self._options.servers, self._options.timeout_s)


class BatchWriter(_Writing, DataSourceArrowWriter):
    """The writer of `df.write`, by itself or in `foreachBatch`.

    In `foreachBatch` a user may write several DataFrames, or one DataFrame twice on purpose, so the query's id does not
    identify a write. Each write is new, unless the options `txnAppId` and `txnVersion` identify it.
    """

    def __init__(self, options: SinkOptions) -> None:
        super().__init__(options)
        self._job = Batch(str(uuid.UUID(bytes=once_id(uuid.uuid4().bytes))), 0)  # the same for all tasks of the write
        if options.txn_app_id:
            self._job = Batch(str(application_id(options.txn_app_id)), options.txn_version)

    def _batch(self, context: TaskContext) -> Batch:
        return self._job

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the staged rows of all tasks."""
        self._publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: Spark calls it after a failed `commit`, too, which may have published the batch."""


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`."""

    def _batch(self, context: TaskContext) -> Batch:
        told = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        return Batch(query_id_of(told[0]), batch_id_of(told[1]))

    def _overtaken(self, text: str) -> None:
        # Spark replays only the last batch. So this driver was replaced and still runs, or an older checkpoint was
        # restored: then the next batches would have other rows under the same numbers.
        raise OperationalError(
            f"{text} of this query: another driver runs it, or its checkpoint is older than what it has written. "
            "Begin with another checkpointLocation, from offsets of your choice"
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the staged rows of all tasks of a batch."""
        self._publish(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: Spark calls it after a failed `commit`, too, which may have published the batch."""


class _Waiting:
    """Buffered rows of one partition, not staged yet."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.rows = self.size_bytes = 0


class _Staging:
    """Buffers and stages the rows of one task."""

    def __init__(self, client: Client, options: SinkOptions, batch: Batch) -> None:
        self._client = client
        self._options = options
        # `republish` reads the staged rows after the publish. Without a batch id they are kept until they expire.
        self._batch = (None, None) if options.republish else batch
        self._streams: dict[str, StreamInfo] = {}
        self._waiting: dict[tuple[str, int], _Waiting] = {}
        self._staged: list[dict[str, Any]] = []
        self._bytes = 0  # of all buffered rows
        self.rows = self.headers_left_out = 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Buffer rows from Spark, and stage full buffers. The columns have the names of a message's columns."""
        batch, left_out = with_valid_headers(batch, drop=self._options.drop_invalid_headers)
        self.headers_left_out += left_out
        for name in streams_of(batch, self._options.stream):
            if name not in self._streams:
                if not name:
                    raise BadRowsError("a row's topic is null, and the option stream does not say where it goes")
                timeout_s = self._options.timeout_s
                self._streams[name] = permissions.there(self._client, Operation.APPEND, name, timeout_s)
        for share in shares(batch, self._streams, self._options.stream):
            self._add(share)
        self.rows += batch.num_rows

    def _add(self, share: Share) -> None:
        key = (share.stream, share.partition)
        waiting = self._waiting.setdefault(key, _Waiting())
        waiting.batches.append(share.rows)
        waiting.rows += share.rows.num_rows
        waiting.size_bytes += share.rows.nbytes
        self._bytes += share.rows.nbytes
        if waiting.size_bytes >= STAGE_BYTES or waiting.rows >= STAGE_ROWS:
            self._stage(key)
        while self._bytes >= STAGE_BYTES_ALL:
            self._stage(max(self._waiting, key=lambda one: self._waiting[one].size_bytes))

    def _stage(self, key: tuple[str, int]) -> None:
        stream, partition = key
        waiting = self._waiting.pop(key)
        self._bytes -= waiting.size_bytes
        table = pa.Table.from_batches(waiting.batches)
        query_id, batch_id = self._batch
        staged = self._client.staging.stage(
            self._streams[stream],
            table,
            partition=partition,
            query_id=query_id,
            batch_id=batch_id,
            timeout=self._options.timeout_s,
        )
        self._staged.append({"stream": stream, "partition": partition, "staged": staged.to_dict()})

    def finish(self) -> list[dict[str, Any]]:
        """Stage the remaining rows; return the positions of all staged rows, in the order of staging."""
        for key in sorted(self._waiting):
            self._stage(key)
        return self._staged


def has_failed_in_task(trace: str) -> bool:
    """True if a write failed in a task, so that the driver published nothing. This module's stack frames show it."""
    frames = re.findall(rf'{__name__.replace(".", "/")}\.py", line \d+, in (\w+)', trace)
    return "write" in frames and not {"commit", "_publish"} & set(frames)
