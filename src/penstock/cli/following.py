"""Following a stream through outages of its broker, told on stderr: once when it goes, once when it is back.

Rules: nothing is skipped and nothing comes twice: what is read next follows on what was read last. A stream that was
deleted and made again meanwhile is another one: StreamChanged ends it.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from penstock.base.errors import OperationalError
from penstock.cli.failure import say_note

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.blocking import Client
    from penstock.client.filters import Filter
    from penstock.messages import StreamInfo

BATCH_ROWS_MAX = 10_000


def following(
    client: Client,
    info: StreamInfo,
    begin: int,
    stop: int | None,
    timeout_s: float,
    *,
    for_ever: bool,
    partition: int | None = 0,
    where: Filter | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """The batches from offset `begin` on; without `for_ever` an outage longer than the time-out ends it.

    `partition` None: of a stream with one partition, and those that are added to it; once it has several, an outage
    ends it as well.
    """
    from penstock.client.batches import partition_of
    from penstock.client.errors import TimedOut, Unavailable

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
            if not for_ever or has_grown:
                raise
            reason = error.message if isinstance(error, TimedOut) else str(error)
            say_note(f"waiting for the broker at {client.server}: {reason.partition(';')[0]}")
        wait_until_back(client, info, number, timeout_s)
        _check_same_log(client, info, number, at - 1, last, timeout_s, where)
        say_note(f"the broker at {client.server} answers again; going on at offset {at}")


def wait_until_back(client: Client, info: StreamInfo, partition: int, timeout_s: float) -> None:
    """Return once a partition can be asked again."""
    from penstock.client.errors import TimedOut, Unavailable
    from penstock.client.values import EARLIEST

    while True:
        with suppress(Unavailable, TimedOut):  # after it has tried to connect for as long as it had
            client.offsets(info, EARLIEST, partition=partition, timeout=timeout_s)
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
    """OperationalError if what was read last, with the timestamp `last`, is no longer what lies at `offset`."""
    from penstock.client.errors import OffsetOutOfRange

    with suppress(OffsetOutOfRange):  # retention took it, or the log ends before it: reading on tells
        if last is None:
            return
        # Not `get`: who may read some subjects only says which.
        options: dict[str, Any] = {"end": offset + 1, "partition": partition, "where": where, "timeout": timeout_s}
        with closing(client.read(info, offset, **options)) as source:
            found = next(source, None)
        if found is not None and found.column("timestamp")[0].value != last.value:
            raise OperationalError(f"stream {info.name} began anew meanwhile: offset {offset} is another message now")
