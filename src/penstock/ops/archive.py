"""Archives streams on this machine: the files and the promise of the job on Spark, with threads for its tasks.

Rules: the loop is `penstock.lake.archiving.job`, and both continue each other's archives. A thread carries out one task
at a time, and a task buffers no more than LAKE_TASK_BUFFER_BYTES, so memory does not grow with the log. A batch that
fails or is stopped leaves no files.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock.base import limits
from penstock.client.blocking.client import Client
from penstock.lake.archiving.decoding import archived_types
from penstock.lake.archiving.job import Archived, ArchiveJob, chosen_streams, rejects_of
from penstock.lake.archiving.plan import decoded, plan_of
from penstock.lake.archiving.tasks import Batch, drop_files, write_task
from penstock.lake.progress import Report, no_report
from penstock.lake.reading import fetching
from penstock.lake.reading.pieces import Piece
from penstock.lake.tables.table import LakeFile
from penstock.ops.errors import StoppedError


class ArchiveOptions(NamedTuple):
    """Options of `archive_stream`. The first run fixes `format`, `name`, `decode` and `schema`.

    `format`: "parquet", or with the extra `lake` "delta" or "iceberg". `name`: up to 64 letters, digits, `.`, `-` and
    `_`; default: the folder's name and a random id. A batch has at most `max_batch` messages, a file about `file_bytes`
    bytes. `decode` adds the column `data` with the decoded values: "schema" by the registered schemas, "avro" by the
    Avro `schema`. `fail_on_data_loss`: False continues behind messages that were deleted from the log before they were
    archived.
    """

    format: str = "parquet"
    name: str = ""
    max_batch: int = limits.ARCHIVE_BATCH_ROWS_DEFAULT
    file_bytes: int = limits.LAKE_FILE_BYTES_DEFAULT
    decode: str = ""
    schema: str = ""
    fail_on_data_loss: bool = True


def archive_stream(
    client: Client,
    stream: str | Sequence[str],
    to: str | Path,
    options: ArchiveOptions | None = None,
    *,
    timeout: float = 10.0,
    report: Report = no_report,
    stop: threading.Event | None = None,
) -> Archived:
    """Copy the messages that are in the log now into the folder `to`, each once, partitioned by UTC date and stream.

        with penstock.connect() as client:
            done = ops.archive_stream(client, "orders", "lake")

    `stream`: a name or a pattern such as `orders-*`, or several. A run continues where the last one ended, even if that
    one was killed or ran on Spark (`penstock.spark.archive`). `report` is called after each
    batch. `stop`: if it is set, the run ends soon, between two batches, with StoppedError.

    Raise ConfigError if an argument is invalid, or if values of the archive are JSON, which Spark decodes;
    DataLossError if messages were deleted from the log before they were archived and `fail_on_data_loss` is set, or, in
    any case, if the log was truncated below the archive's end or restarted empty, or the stream was deleted and created
    again; OvertakenError if another job writes the same archive; OperationalError if a package is missing or a
    partition's leader does not answer.
    """
    chosen = options or ArchiveOptions()
    streams = stream if isinstance(stream, str) else ",".join(stream)
    plan = plan_of(
        streams, to, format=chosen.format, name=chosen.name, max_batch=chosen.max_batch, min_batch=1, max_delay_s=0.0,
        trigger_s=0.0, file_bytes=chosen.file_bytes, fail_on_data_loss=chosen.fail_on_data_loss, timeout_s=timeout,
    )  # fmt: skip
    there = chosen_streams(client, plan)  # before the folder is made
    plan = decoded(plan, chosen.decode, chosen.schema, partial(archived_types, client, list(there.streams), timeout))
    stopping = stop or threading.Event()
    how = fetching.Fetching(plan.columns, (), plan.fail_on_data_loss, timeout, typed=plan.typed)
    runner = _Threads(client, how, stopping)
    job = ArchiveJob(client, plan, runner, plan.open_table(), rejects_of(plan), runner.check_stop)
    return job.run(once=True, report=report)


class _Threads:
    """Carries out the tasks of a batch with threads of this process."""

    def __init__(self, client: Client, how: fetching.Fetching, stopping: threading.Event) -> None:
        self._client = client
        self._how = how
        self._stopping = stopping

    def check_stop(self) -> None:
        """Raise StoppedError if the run is to end."""
        if self._stopping.is_set():
            raise StoppedError("the archive was stopped; the next run continues")

    def __call__(self, batch: Batch) -> list[LakeFile]:
        """Write the files of a batch. If a task fails, raise its error, and delete the files of all tasks."""
        abandoned = threading.Event()

        def read(piece: Piece) -> Iterator[pa.RecordBatch]:
            for rows in fetching.read(self._client, self._how, piece):
                if abandoned.is_set():
                    raise StoppedError("another task of the batch has failed")
                self.check_stop()
                yield rows

        count = len(batch.tasks)
        threads = min(count, limits.ARCHIVE_THREADS, os.cpu_count() or 1)
        with futures.ThreadPoolExecutor(threads, "penstock-archive") as pool:
            tasks = [pool.submit(write_task, batch, number, read) for number in range(count)]
            try:
                futures.wait(tasks, return_when=futures.FIRST_EXCEPTION)
                failures = [one.exception() for one in tasks if one.done()]
                if (error := next(filter(None, failures), None)) is not None:
                    raise error
                return [file for one in tasks for file in one.result()]
            except BaseException:
                abandoned.set()
                pool.shutdown(cancel_futures=True)
                ended = [one for one in tasks if not one.cancelled() and one.exception() is None]
                drop_files(batch, [file for one in ended for file in one.result()])
                raise
