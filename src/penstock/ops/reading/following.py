"""Follows a stream through outages of its broker; one note tells when an outage begins, and one when it ends.

Rules: no message is skipped or repeated: reading resumes after the last offset. If the stream was deleted and created
again meanwhile, reading ends with StreamChanged.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from penstock.base.errors import OperationalError
from penstock.ops.progress import Progress

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking.client import Client
    from penstock.client.read.filters import Filter
    from penstock.messages import StreamInfo

BATCH_ROWS_MAX = 10_000


def following(
    client: Client,
    info: StreamInfo,
    begin: int,
    stop: int | None,
    timeout_s: float,
    *,
    progress: Progress,
    for_ever: bool,
    partition: int | None = 0,
    where: Filter | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """Yield batches from offset `begin` on. Without `for_ever`, raise if an outage exceeds the time-out.

    `partition` None reads a stream that has one partition, and the partitions added later; once rows of an added
    partition were read, an outage raises as well.
    """
    from penstock.client.errors import ClientClosed, TimedOut, Unavailable
    from penstock.client.read.batches import partition_of

    at, number = begin, partition or 0
    last: pa.Scalar | None = None
    has_grown = False
    while True:
        source = client.read(
            info,
            at,
            end=stop,
            partition=partition,
            follow=True,
            batch_rows_max=BATCH_ROWS_MAX,
            timeout=timeout_s,
            where=where,
        )
        try:
            with closing(source):
                for batch in source:
                    if (partition_of(batch) or 0) != number:
                        has_grown = True
                        yield batch
                        continue
                    at = batch.column("offset")[-1].as_py() + 1
                    last = batch.column("timestamp")[-1]
                    yield batch
            return
        except (Unavailable, TimedOut) as error:
            if not for_ever or has_grown or isinstance(error, ClientClosed):
                raise
            reason = error.message if isinstance(error, TimedOut) else str(error)
            progress.note(f"waiting for the broker at {client.server}: {reason.partition(';')[0]}")
        wait_until_back(client, info, number, timeout_s)
        _check_same_log(client, info, number, at - 1, last, timeout_s, where)
        progress.note(f"the broker at {client.server} answers again; going on at offset {at}")


def wait_until_back(client: Client, info: StreamInfo, partition: int, timeout_s: float) -> None:
    """Return once the partition answers requests again."""
    from penstock.client.errors import ClientClosed, TimedOut, Unavailable
    from penstock.client.values import EARLIEST

    while True:
        try:
            client.offsets(info, EARLIEST, partition=partition, timeout=timeout_s)
        except ClientClosed:
            raise
        except (Unavailable, TimedOut):
            continue  # the client retries until its time-out, so this loop does not spin
        return


def _check_same_log(
    client: Client,
    info: StreamInfo,
    partition: int,
    offset: int,
    last: pa.Scalar | None,
    timeout_s: float,
    where: Filter | None,
) -> None:
    """Raise OperationalError if the message at `offset`, the last one read, no longer has the timestamp `last`."""
    from penstock.client.errors import OffsetOutOfRange

    with suppress(OffsetOutOfRange):  # deleted by retention, or beyond the log end: the next read reports that
        if last is None:
            return
        # Not `get`: a user with permission for some subjects only must pass the filter `where`.
        options: dict[str, Any] = {"end": offset + 1, "partition": partition, "where": where, "timeout": timeout_s}
        with closing(client.read(info, offset, **options)) as source:
            found = next(source, None)
        if found is not None and found.column("timestamp")[0].value != last.value:
            raise OperationalError(f"stream {info.name} began anew meanwhile: offset {offset} is another message now")
