"""NATS subscriptions of the led partitions, and the gaps in which no broker was subscribed.

Rules: a gap of the broker lasts from the loss of the NATS connection until NATS has granted or refused every
subscription; after a start it lasts until the broker is registered. It applies to the partitions that this broker led
when it began and leads when it ends, in the same leadership or the next one (`covered`). A partition that another
broker led meanwhile has a gap of its own, kept by its next leader, from the last moment in which that broker knows its
predecessor to have been subscribed. A partition whose subscription NATS refuses or revokes has a gap of its own until
it is granted; if it has several subjects, the gap's reason names the refused one, and messages on the others are
stored meanwhile. A subject that replaces an overlapping one begins a gap, too: for a moment neither is subscribed. Gaps
are written to disk as soon as they are known.

A leader without NATS is useless: partitions not subscribed for NATS_ABSENT_MS are `absent`, and others are to lead
them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.ids import BrokerId, PartitionKey
from penstock.base.subjects import overlap
from penstock.hot.message_group import MessageGroup
from penstock.messages import GapInfo
from penstock.messages.streams import BROKER_STOPPED
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_events import PartitionEventKind, PartitionEvents
from penstock.node.step import Lane, Outbox
from penstock.node.subscriptions.gaps import Gaps
from penstock.node.subscriptions.key_routing import owned_messages, route_by_key
from penstock.node.subscriptions.subscriptions import SubscriptionListener, Subscriptions
from penstock.vfs import Vfs

_ABSENT_US = limits.NATS_ABSENT_MS * 1_000
NOBODY_LED = "nobody led it"
NOT_HEARD = "the metadata leader did not answer this broker"


def was_led_by(broker_id: BrokerId, partition: Partition) -> bool:
    """True if the broker led the partition last, by the image; the last in-sync replica counts if it has no leader."""
    state = partition.stream.partitions[partition.key.partition]
    return state.leader == broker_id or (state.leader is None and state.isr == (broker_id,))


class _Refusal(NamedTuple):
    subject: str  # the one that was refused last
    reason: str
    since_us: int  # elapsed
    is_partial: bool = False  # other subjects of the partition are confirmed


def _gap_reason(partition: Partition, refusal: _Refusal) -> str:
    what = "the subscription" if len(partition.subjects) == 1 else f"the subscription to {refusal.subject!r}"
    return f"NATS refused {what}: {refusal.reason}"


class NatsListener:
    """Tracks subscriptions and gaps."""

    def __init__(
        self,
        vfs: Vfs,
        outbox: Outbox,
        events: PartitionEvents,
        *,
        domain_prefix: bytes = b"",
    ) -> None:
        self._domain_prefix = domain_prefix
        self.gaps = Gaps(vfs)
        self.subscriptions: Subscriptions[Partition] = Subscriptions(
            outbox, SubscriptionListener(self._confirmed, self._refused, self._partly, self._settled)
        )
        self._outbox = outbox
        self._events = events
        self._refusals: dict[Partition, _Refusal] = {}
        self._down_us: int | None = None  # elapsed time since which NATS is disconnected
        self._drained_us: int | None = None  # wall-clock time when NATS was left for a stop
        self.has_nats = False
        self._covered: set[Partition] = set()  # partitions to which the broker's gap applies
        # partitions with a gap of their own that began while they had no leader
        self._waiting: set[PartitionKey] = set()
        self._is_saving = self._is_changed = self._is_stopped = False
        # `_is_proven`: NATS confirmed everything before this broker was registered
        self._may_lead = self._is_proven = False

    def load(self, *, led: Iterable[Partition], last_sign_of_life_us: int, now_us: int) -> None:
        """Load the gaps of earlier runs; blocks. `led`: partitions led last, by the image known so far."""
        note = self.gaps.load(last_sign_of_life_us=last_sign_of_life_us, now_us=now_us)
        if note is not None:
            self._outbox.notice(note)
        self._waiting |= self.gaps.open_for(NOBODY_LED)
        # Saved before the broker registers: otherwise the next start would take this time as subscribed.
        if self.gaps.is_open:
            self._save_now()
        if (start_us := self.gaps.open_since()) is not None:
            for partition in led:
                partition.listened_us = max(partition.listened_us, start_us)
                partition.led_epoch = partition.leader_epoch
                if self.gaps.open_since(partition.key) is None:
                    self._covered.add(partition)

    def may_lead(self, stream_ids: Container[int]) -> None:
        """Note that this broker is registered and knows all streams: from now on it subscribes to all that it leads."""
        self._may_lead = True
        self.gaps.keep_only(stream_ids)  # a start may know an older image, without some streams that have gaps
        if self._is_proven:
            self._is_proven = False
            self.subscriptions.prove()

    def remove(self, partition: Partition) -> None:
        """Forget a deleted partition."""
        self.subscriptions.remove(partition)
        self._covered.discard(partition)
        self._refusals.pop(partition, None)
        self._waiting.discard(partition.key)
        if self.gaps.forget(partition.key):
            self._save()

    def took_over(self, partition: Partition, now: Now, reason: str, *, goes_on: bool) -> None:
        """Begin a gap at `partition.listened_us`, until this broker is subscribed.

        `goes_on`: no other broker led it since this one did.
        """
        own_us = self.gaps.open_since()
        since_us = min(partition.listened_us, now.wall_us)
        if goes_on and own_us is not None and own_us <= since_us and self.gaps.open_since(partition.key) is None:
            self._covered.add(partition)
            return
        self._covered.discard(partition)
        self._waiting.discard(partition.key)
        if self.gaps.begin(since_us, reason, partition.key):
            self._save()

    @property
    def knows_streams(self) -> bool:
        """True if this broker was registered, and so knows all streams of that time."""
        return self._may_lead

    def until_us(self, now_us: int) -> int:
        """Return when this broker was last subscribed: `now_us`, or when its gap or the drain began."""
        known = (now_us, self._drained_us, self.gaps.open_since())
        return min(one for one in known if one is not None)

    def begins(self, partition: Partition) -> None:
        """Note a new subscription without a gap before it."""
        if self.gaps.is_open:
            self._covered.add(partition)

    def gaps_of(self, partition: Partition) -> tuple[GapInfo, ...]:
        """Return the partition's gaps that this broker knows, oldest first."""
        return self.gaps.of(
            partition.key,
            partition.stream.created_us,
            with_broker=not partition.is_replicated,
            with_open=partition in self._covered,
        )

    def nobody(self, partition: Partition, now: Now) -> None:
        """Begin a gap because the partition has no leader. This broker may be the next one, perhaps after a restart."""
        if partition in self._covered:
            return
        if self.gaps.begin(min(partition.listened_us, now.wall_us), NOBODY_LED, partition.key):
            self._waiting.add(partition.key)
            self._save()

    def led_elsewhere(self, partition: Partition, now: Now) -> None:
        """Handle another broker's leadership, which records the gap before it.

        That broker cannot know that this one led without being subscribed: such a gap stays here.
        """
        self._covered.discard(partition)
        key = partition.key
        if key not in self._waiting and not self.gaps.is_open_for(key, NOT_HEARD):
            self._end(partition, now)
        else:
            self._waiting.discard(key)
            if self.gaps.drop(key) is not None:
                self._save()

    def listen(self, partition: Partition) -> None:
        """Subscribe to the partition's subjects."""
        self.subscriptions.add(partition)

    def follow_subjects(self, partition: Partition, now: Now) -> None:
        """Move the partition's subscriptions to its subjects, if they have changed."""
        before = frozenset(self.subscriptions.subjects_of(partition))
        if not self.subscriptions.move_if_due(partition):
            return
        partition.subscribed, partition.refusal = False, ""
        if (refusal := self._refusals.pop(partition, None)) is not None:
            left = self.subscriptions.refused_of(partition)
            if left:
                self._refusals[partition] = refusal._replace(subject=left[0])
        subjects = frozenset(partition.subjects)
        is_replaced = any(overlap(gone, new) for gone in before - subjects for new in subjects - before)
        if is_replaced and self.gaps.begin(now.wall_us, "its subjects were changed", partition.key):
            self._save()

    def assign(self, groups: Mapping[int, MessageGroup]) -> Iterator[tuple[Partition, MessageGroup]]:
        """Assign the messages of one read, by the id that their subscriptions have in common, to partitions."""
        subscriptions = self.subscriptions
        for sid, group in groups.items():
            if self._domain_prefix:
                group.drop_subject_prefix(self._domain_prefix)
            if (partition := subscriptions.by_sid.get(sid)) is not None:
                if partition.takes_batches:  # it is the stream's only one
                    yield from ((partition, piece) for piece in partition.pieces(group))
                elif partition.keys is None:
                    yield partition, group
                else:
                    yield from owned_messages(partition, group, self._outbox)
            elif (channel := subscriptions.channels.get(sid)) is not None:
                yield from route_by_key(channel, group, self._outbox)
            elif (partition := subscriptions.former.get(sid)) is not None:
                yield from self._heard_before(partition, group)
            # else the stream was just deleted

    def _heard_before(self, partition: Partition, group: MessageGroup) -> Iterator[tuple[Partition, MessageGroup]]:
        """Assign messages of an old subscription: the partition moved when its stream got more partitions."""
        channel = self.subscriptions.channel_of(partition)
        if channel is not None:
            yield from route_by_key(channel, group, self._outbox)
        else:
            yield from owned_messages(partition, group, self._outbox)

    def listens(self, partition: Partition) -> bool:
        """True if its subscription was requested."""
        return self.subscriptions.by_sid.get(partition.sid) is partition

    def paused(self, partition: Partition, now: Now) -> None:
        """End its gap: intake is paused on purpose."""
        self._covered.discard(partition)
        self._end(partition, now)

    def resign(self, partition: Partition, now: Now) -> None:
        """Unsubscribe, and record until when this broker was subscribed."""
        self.subscriptions.remove(partition)
        self._refusals.pop(partition, None)
        until_us, own_us = self.until_us(now.wall_us), self.gaps.open_since(partition.key)
        partition.listened_us = until_us if own_us is None else min(until_us, own_us)
        if partition in self._covered and self.gaps.open is not None:
            self._covered.discard(partition)
            self.gaps.ended(self.gaps.open, now.wall_us, partition.key)
            self._save()

    def up(self) -> None:
        """Handle a connection to NATS with all subscriptions renewed; a barrier shows which of them NATS granted."""
        self.has_nats, self._down_us = True, None
        self.subscriptions.up()

    def absent(self, now: Now) -> Iterator[tuple[Partition, bool]]:
        """Yield partitions not subscribed for NATS_ABSENT_MS, each with True if NATS refuses the subscription."""
        if self.has_nats:
            for partition, refusal in self._refusals.items():
                if now.elapsed_us >= refusal.since_us + _ABSENT_US and not refusal.is_partial:
                    yield partition, True
            return
        if self._down_us is None:
            self._down_us = now.elapsed_us
        if now.elapsed_us >= self._down_us + _ABSENT_US:
            for partition in self.subscriptions.by_sid.values():
                yield partition, False

    def lost(self, now: Now, reason: str) -> None:
        """Begin the broker's gap: the NATS connection is lost."""
        if self.has_nats or self._down_us is None:
            self.has_nats, self._down_us = False, now.elapsed_us
        self.subscriptions.lost()
        self._is_proven = False
        self._refusals.clear()
        if not self.gaps.is_open:
            self.gaps.begin(self.until_us(now.wall_us), reason)
            listening = self.subscriptions.by_sid.values()
            self._covered.update(one for one in listening if self.gaps.open_since(one.key) is None)
            self._save()

    def drain(self, until_us: int) -> None:
        """Note that NATS is being left: messages published after `until_us` may not arrive."""
        self._drained_us = until_us if self._drained_us is None else min(until_us, self._drained_us)

    def stop(self, now: Now) -> None:
        """Begin the gap of the stopped broker and save it; blocks."""
        self._is_stopped = True
        self.gaps.begin(self.until_us(now.wall_us), BROKER_STOPPED)
        self._save_now()

    def _save_now(self) -> None:
        try:
            self.gaps.save().run()
        except OSError as error:
            self._saved(error)

    def _confirmed(self, partition: Partition, now: Now) -> None:
        self._refusals.pop(partition, None)
        if (gap := self._end(partition, now)) is not None:
            self._tell(f"{partition.label}: ", gap)
        partition.subscribed, partition.refusal = True, ""
        self._events.add(PartitionEventKind.SUBSCRIBED, partition)

    def _end(self, partition: Partition, now: Now) -> GapInfo | None:
        """End the partition's own gap, if any. Return it, unless it is empty."""
        if self.gaps.open_since(partition.key) is None:
            return None
        gap = self.gaps.end(now.wall_us, partition.key)
        self._save()  # even an empty gap: the disk has it as open
        return gap

    def _refused(self, partition: Partition, subject: str, reason: str, now: Now) -> None:
        before = self._refusals.get(partition)
        if before is None:
            before = _Refusal(subject, reason, now.elapsed_us)
        refusal = self._refusals[partition] = before._replace(subject=subject, reason=reason)
        if not self.gaps.is_open:
            self._begin_for(partition, refusal, now)
        partition.subscribed = False
        self._events.add(PartitionEventKind.SUBSCRIPTION_REFUSED, partition, subject=subject, reason=reason)

    def _partly(self, partition: Partition, now: Now) -> None:
        """Note that all but some subjects are confirmed: the gap is that of the refused ones."""
        refusal = self._refusals[partition] = self._refusals[partition]._replace(is_partial=True)
        told = PartitionEventKind.SUBSCRIPTION_REFUSED
        self._events.add(told, partition, subject=refusal.subject, reason=refusal.reason)
        if self.gaps.is_open or self.gaps.is_open_for(partition.key, _gap_reason(partition, refusal)):
            return
        if (gap := self._end(partition, now)) is not None:
            self._tell(f"{partition.label}: ", gap)
        self._begin_for(partition, refusal, now)

    def _begin_for(self, partition: Partition, refusal: _Refusal, now: Now) -> None:
        if self.gaps.begin(now.wall_us, _gap_reason(partition, refusal), partition.key):
            self._save()

    def _settled(self, now: Now) -> None:
        if not self._may_lead:
            self._is_proven = True
            return
        if self.gaps.is_open:
            self._end_of_broker(now)
            self._save()
        for partition, refusal in self._refusals.items():
            self._begin_for(partition, refusal, now)

    def _end_of_broker(self, now: Now) -> None:
        covered = [one for one in self._covered if not one.is_deaf]
        self._covered.clear()
        listening = [one for one in covered if self.listens(one)]
        began = self.gaps.drop()
        assert began is not None
        for partition in covered:
            if partition not in listening:  # its own gap lasts until a broker leads it
                self.gaps.begin(began.start_us, began.reason, partition.key)
        if not listening or (gap := self.gaps.ended(began, now.wall_us)) is None:
            return
        for partition in listening:
            if partition.is_replicated:
                self.gaps.add(gap, partition.key)
        self._tell("", gap)

    def _tell(self, who: str, gap: GapInfo) -> None:
        assert gap.end_us is not None
        seconds = (gap.end_us - gap.start_us) / 1e6
        self._outbox.notice(
            f"{who}not subscribed for at most {seconds:.3f} s ({gap.reason}): "
            "what was published then may not be stored; what was acked is"
        )

    def _save(self) -> None:
        """Start a save. One writer at a time, or an older list could overwrite a newer one."""
        self._is_changed = True
        if not self._is_saving:
            self._is_saving, self._is_changed = True, False
            self._outbox.work(Lane.WRITE, self.gaps.save().run, self._saved)

    def _saved(self, error: Exception | None) -> None:
        self._is_saving = False
        if error is not None:
            self._outbox.notice(f"cannot save the list of gaps: {error}")
        if self._is_changed and not self._is_stopped:
            self._save()
