"""What a leader knows of the producers of its log, and how it comes to know them.

Rules: what is known is a function of the log, as of message ids (see `node.dedup`): it is read when the first batch of
a producer comes under a leadership, kept up to date while that lasts, and forgotten with it. Appends wait meanwhile, in
their order (see `appends`). Only headers are read, back to where the window begins, and whole batches only of those
that say something. A partition without producers never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionKey, TimestampUs
from penstock.commitlog import LogState
from penstock.ingest.producers import Backwards, Producers
from penstock.messages import ListProducersRequest, ListProducersResponse, ProducerInfo
from penstock.node.finding import Finder
from penstock.node.looking_back import LookBack
from penstock.node.partition import Partition
from penstock.node.queries import CheckAppend
from penstock.node.step import Lane, Outbox
from penstock.node.wording import as_remote, in_doubt


class KnownProducers:
    """Says which batches are there, and has the producers of a partition read for it: `known(key)` hears of the end."""

    def __init__(self, outbox: Outbox, clock: Callable[[], Now], *, known: Callable[[PartitionKey], None]) -> None:
        self._outbox = outbox
        self._clock = clock
        self._known = known

    def tell(
        self, find: Finder, caller: Hashable, request: ListProducersRequest, raw: bytes | memoryview, now: Now
    ) -> None:
        """Answer a client who asks for those of a partition. RemoteError not_leader, not_yet, storage_failed.

        The first who asks under a leadership has them read; what is not committed yet counts, as for a batch.
        """
        partition = find.led(request.stream_id, request.partition)
        producers = partition.producers or (None if partition.leadership is None else self._read(partition))
        if producers is None or producers.is_reading:
            text = f"the producers of {partition.label} are being read; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)
        if producers.failure:
            partition.producers = None  # the next one has them read again
            raise RemoteError(ErrorCode.STORAGE_FAILED, producers.failure)
        now_us = partition.timestamp_us(now)
        found = producers.page(request.after_producer_id, limits.PRODUCERS_PER_ANSWER_MAX, now_us)
        told = tuple(
            ProducerInfo(
                producer_id=producer_id,
                producer_epoch=epoch,
                last_sequence=place.end_sequence - 1,
                last_offset=Offset(place.end_offset - 1),
                timestamp_us=TimestampUs(place.timestamp_us),
            )
            for producer_id, epoch, place in found
        )
        self._outbox.reply(caller, ListProducersResponse(producers=told))

    def is_new(self, partition: Partition, caller: Hashable, batch: CheckAppend) -> bool | None:
        """Whether a batch is to be stored; if not, `caller` hears why, or where it is once that is committed.

        None: that is not known yet; `known` is called in time. A partition that takes nothing still says what is there.
        """
        if not batch.producer.producer_id or partition.leadership is None:
            return True  # … or is refused as any other
        if (producers := partition.producers) is None:
            producers = self._read(partition)
        if producers.is_reading:
            return None
        if producers.failure:
            partition.producers = None  # the next one has them read again
            text = f"nothing was stored: {producers.failure}"
            self._outbox.reply(caller, RemoteError(ErrorCode.STORAGE_FAILED, text))
            return False
        try:
            place = producers.find(batch.producer, batch.count, partition.timestamp_us(self._clock()))
        except RemoteError as error:
            self._outbox.reply(caller, error)
            return False
        if place is None:
            return True
        if place.end_offset > partition.committed_end and partition.log.state is LogState.FENCED:
            self._outbox.reply(caller, in_doubt(partition.log.fence_reason))  # nobody commits it here any more
            return False
        partition.counters["duplicates"] += batch.count
        partition.append_again(caller, place, self._outbox.step)
        return False

    def _read(self, partition: Partition) -> Producers:
        partition.producers = producers = Producers()
        since_us = partition.timestamp_us(self._clock()) - limits.PRODUCER_WINDOW_MS * 1_000
        work = LookBack(partition.view(), since_us, Backwards(since_us))

        def done(error: Exception | None) -> None:
            if error is None:
                producers.known(work.found)
            else:
                producers.failure = f"the producers in the log cannot be read: {as_remote(error)}"
            self._known(partition.key)

        self._outbox.work(Lane.READ, work.run, done)
        return producers
