"""Messages of atomic batches, as they come to the leader of a stream: kept, answered, and handed over to be stored.

Rules: a commit may have to wait until message ids or last sequences are read from the log; then it comes again as the
same group, and its batch is not taken apart meanwhile. A refusal that depends on what this broker keeps waits like
each one that only a leader may send (`deferred_refusals`). An abandoned batch is told by an advisory, as nats-server's
is, because its publisher may never ask again.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.base.clock import Now
from penstock.hot.message_group import MessageGroup
from penstock.ingest import acks
from penstock.ingest.ack_waiters import BatchWaiter
from penstock.ingest.atomic_batches import AbandonReason, AtomicBatches, BatchMessage, ReadyBatch, message_at
from penstock.node.partition.atomic_clock import AtomicClock
from penstock.node.step import NatsAnswers, Step

if TYPE_CHECKING:
    from penstock.node.partition.partition import Partition

_ADVISORY_SUBJECT = b"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED."
_ADVISORY_TYPE = "io.nats.jetstream.advisory.v1.stream_batch_abandoned"
_ADVISORY_ID_CHARS = 22  # as many as nats-server's ids have


class _Committing(NamedTuple):
    """A batch that is being stored, and the group whose message commits it."""

    of: MessageGroup
    ready: ReadyBatch


class AtomicIngest:
    """The atomic batches of one leadership."""

    def __init__(self, partition: Partition, clock: AtomicClock) -> None:
        self._partition, self._clock = partition, clock
        self._batches = AtomicBatches(clock.open, str(partition.key.stream_id))
        self._committing: _Committing | None = None
        self._abandoned = 0  # so many advisories were sent

    @property
    def next_deadline_us(self) -> int | None:
        """Elapsed time at which the first batch expires; None if there is none."""
        return self._batches.next_deadline_us

    def drop(self) -> None:
        """Forget all batches."""
        self._batches.drop_all()
        self._clock.forget(self)

    def expire(self, now: Now, step: Step) -> None:
        """Abandon the batches that have expired."""
        for batch_id in self._batches.expire(now.elapsed_us):
            self._tell_abandoned(batch_id, AbandonReason.TIMEOUT, now, step)

    def ingest(self, group: MessageGroup, now: Now, step: Step, *, arrived_us: int, must: bool) -> bool:
        """Take a piece of messages of batches (`atomic_batches.pieces`). Return False as `Partition.ingest`."""
        partition = self._partition
        if self._committing is None or self._committing.of is not group:
            if (closed := partition.unavailable_reason()) is not None:
                partition.turn_away(group, *closed, step)
                return True
            ready = None
            for row in range(group.count):
                ready = self._take(message_at(group, row), now, step)
            if self._batches:
                self._clock.watch(self)
            if ready is None:
                return True
            self._committing = _Committing(group, ready)
        ready = self._committing.ready
        waiter = self._waiter_of(ready)
        early, late = (waiter, None) if ready.commit.ack == b"leader" else (None, waiter)
        if not partition.ingest_batch(ready, early, late, now, step, arrived_us=arrived_us, must=must):
            return False
        self._committing = None
        return True

    def _take(self, message: BatchMessage, now: Now, step: Step) -> ReadyBatch | None:
        """Keep one message, or refuse it; return its batch if that is complete."""
        partition = self._partition
        taken = self._batches.take(message, partition.rules, now.elapsed_us)
        reply = self._reply_of(message)
        if taken.is_elsewhere:
            partition.pass_over(message.subject, reply)
            return None
        if taken.abandoned is not None:
            self._tell_abandoned(message.batch_id, taken.abandoned, now, step)
        if taken.error is not None:
            partition.refuse_of_batch(reply, taken.error, step)
        elif reply is not None and taken.ready is None:
            step.publish.append(NatsAnswers(partition.sid, acks.empty_ack(reply)))
        return taken.ready

    def _reply_of(self, message: BatchMessage) -> bytes | None:
        """Return the reply subject that gets an answer."""
        return message.reply if self._partition.rules.acks_replies and message.ack != b"none" else None

    def _waiter_of(self, ready: ReadyBatch) -> BatchWaiter | None:
        reply = self._reply_of(ready.commit)
        return None if reply is None else BatchWaiter(reply, ready.batch_id, ready.group.count)

    def _tell_abandoned(self, batch_id: bytes, reason: AbandonReason, now: Now, step: Step) -> None:
        partition = self._partition
        self._abandoned += 1
        partition.counters["atomic_batches_abandoned"] += 1
        moment = datetime.fromtimestamp(now.wall_us / 1_000_000, UTC)
        event = f"{partition.key.stream_id}.{partition.leader_epoch}.{self._abandoned}".encode()
        told = {
            "type": _ADVISORY_TYPE,
            "id": blake2b(event, digest_size=16).hexdigest()[:_ADVISORY_ID_CHARS],
            "timestamp": moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "stream": partition.stream.name,
            **({"domain": partition.ack_domain} if partition.ack_domain else {}),
            "batch": batch_id.decode(errors="replace"),
            "reason": reason,
        }
        body = msgspec.json.encode(told)
        subject = _ADVISORY_SUBJECT + partition.rules.name
        step.publish.append(NatsAnswers(partition.sid, b"PUB %b %d\r\n%b\r\n" % (subject, len(body), body)))
