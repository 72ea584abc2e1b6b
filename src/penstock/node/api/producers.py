"""Reads the idempotent producers of a leader's log.

Rules: the state is a function of the log, like message ids (see `node.partition.dedup`): a leadership reads the log at
the first batch of a producer, keeps the state current, and drops it at its end. Appends wait meanwhile, in order (see
`append_queue`). Only headers are read, back to the beginning of the window, and whole batches only if they are a
producer's. A partition without producers does no work for it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionKey, TimestampUs
from penstock.commitlog import LogState
from penstock.ingest.producers import ProducerCollector, Producers
from penstock.messages import ListProducersRequest, ListProducersResponse, ProducerInfo
from penstock.node.context import Context
from penstock.node.partition.log_queries import CheckAppend
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error, outcome_unknown_text
from penstock.node.partition.reverse_log_scan import ReverseLogScan
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import Lane


class KnownProducers:
    """Finds duplicate batches; has producers read from the log. `known(key)` is called at the end of a read."""

    def __init__(self, context: Context, *, known: Callable[[PartitionKey], None]) -> None:
        self._outbox = context.outbox
        self._context = context
        self._known = known

    def tell(self, find: PartitionLookup, call: Call, request: ListProducersRequest) -> None:
        """Answer a request for a partition's producers. Raise RemoteError: not_leader, not_yet, storage_failed.

        The first request under a leadership starts the read; uncommitted batches count, as they do for duplicates.
        """
        partition = find.led(request.stream_id, request.partition)
        producers = partition.producers or (None if partition.leadership is None else self._read(partition))
        if producers is None or producers.is_reading:
            text = f"the producers of {partition.label} are being read; ask again in a moment"
            raise RemoteError(ErrorCode.NOT_YET, text)
        if producers.failure:
            partition.producers = None  # the next request reads them again
            raise RemoteError(ErrorCode.STORAGE_FAILED, producers.failure)
        now_us = partition.timestamp_us(call.now)
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
        self._outbox.reply(call.caller, ListProducersResponse(producers=told))

    def is_new(self, partition: Partition, caller: Hashable, batch: CheckAppend) -> bool | None:
        """Return True if a batch is to be stored; False if `caller` gets an error or, once committed, the original's
        place.

        None: not known yet; `known` is called later. A partition that takes no appends still answers duplicates.
        """
        if not batch.producer.producer_id or partition.leadership is None:
            return True  # … or is refused like any other
        if (producers := partition.producers) is None:
            producers = self._read(partition)
        if producers.is_reading:
            return None
        if producers.failure:
            partition.producers = None  # the next request reads them again
            text = f"nothing was stored: {producers.failure}"
            self._outbox.reply(caller, RemoteError(ErrorCode.STORAGE_FAILED, text))
            return False
        try:
            place = producers.find(batch.producer, batch.count, partition.timestamp_us(self._context.now))
        except RemoteError as error:
            self._outbox.reply(caller, error)
            return False
        if place is None:
            return True
        if place.end_offset > partition.committed_end and partition.log.state is LogState.FENCED:
            self._outbox.reply(
                caller, outcome_unknown_text(partition.log.fence_reason)
            )  # can no longer be committed here
            return False
        partition.counters["duplicates"] += batch.count
        partition.append_again(caller, place, self._outbox.step)
        return False

    def _read(self, partition: Partition) -> Producers:
        partition.producers = producers = Producers()
        since_us = partition.timestamp_us(self._context.now) - limits.PRODUCER_WINDOW_MS * 1_000
        work = ReverseLogScan(partition.view(), since_us, ProducerCollector(since_us))

        def done(error: Exception | None) -> None:
            if error is None:
                producers.known(work.found)
            else:
                producers.failure = f"the producers in the log cannot be read: {as_remote_error(error)}"
            self._known(partition.key)

        self._outbox.work(Lane.READ, work.run, done)
        return producers
