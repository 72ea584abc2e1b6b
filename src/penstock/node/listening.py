"""Who listens to NATS, and when nobody did: subscriptions and gaps together.

Rules: a gap of the broker lasts from the loss of the connection until every partition has its verdict; after a start it
lasts until the broker may lead. It counts for what this broker led when it began, and leads when it ends, in the same
leadership or the next one: what others led meanwhile is `covered` by it no more, and has a gap of its own, on whoever
leads it next, from the last moment in which that broker knows that the one before listened. One whose subscription NATS
refuses, or takes away, has a gap of its own until it is confirmed. Gaps are on their way to the disk as soon as they
are known.

A leader without NATS is of no use: what was not listened to for NATS_ABSENT_MS is `absent`, and others are to lead it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.ids import BrokerId, PartitionKey
from penstock.hot.group import Group
from penstock.messages import GapInfo
from penstock.node.gaps import Gaps
from penstock.node.partition import Partition
from penstock.node.shares import own, parted
from penstock.node.step import Lane, Outbox
from penstock.node.subscriptions import Subscriptions, Verdicts
from penstock.vfs import Vfs

_ABSENT_US = limits.NATS_ABSENT_MS * 1_000
NOBODY_LED = "nobody led it"
NOT_HEARD = "the metadata leader did not answer this broker"


def was_led_by(broker_id: BrokerId, partition: Partition) -> bool:
    """Whether that broker was the last to lead it, by the image: nobody leads when the last one in sync is gone."""
    state = partition.stream.partitions[partition.key.partition]
    return state.leader == broker_id or (state.leader is None and state.isr == (broker_id,))


class _Refusal(NamedTuple):
    reason: str
    since_us: int  # elapsed


class Listening:
    """`confirmed` and `refused` tell what NATS says of one partition."""

    def __init__(
        self,
        vfs: Vfs,
        outbox: Outbox,
        *,
        confirmed: Callable[[Partition], None],
        refused: Callable[[Partition, str], None],
    ) -> None:
        self.gaps = Gaps(vfs)
        self.subscriptions: Subscriptions[Partition] = Subscriptions(
            outbox, Verdicts(self._confirmed, self._refused, self._settled)
        )
        self._outbox = outbox
        self._tell_confirmed = confirmed
        self._tell_refused = refused
        self._refusals: dict[Partition, _Refusal] = {}
        self._down_us: int | None = None  # without a connection to NATS since then, elapsed
        self._drained_us: int | None = None  # NATS was left then, by the calendar: the broker stops
        self.has_nats = False
        self._covered: set[Partition] = set()  # whose gap the one of the broker is
        self._waiting: set[PartitionKey] = set()  # which have a gap of their own, and nobody led when it began
        self._is_saving = self._is_changed = self._is_stopped = False
        self._may_lead = self._is_proven = False  # proven: NATS has confirmed all there was, and nothing was led yet

    def load(self, *, led: Iterable[Partition], last_sign_of_life_us: int, now_us: int) -> None:
        """Take over what earlier runs left; blocking. `led`: here, at the end, as far as the image is known yet."""
        note = self.gaps.load(last_sign_of_life_us=last_sign_of_life_us, now_us=now_us)
        if note is not None:
            self._outbox.notice(note)
        self._waiting |= self.gaps.open_for(NOBODY_LED)
        if self.gaps.is_open:  # kept before the broker registers: a start after this one would take that for listening
            self._save_now()
        if (start_us := self.gaps.open_since()) is not None:
            for partition in led:
                partition.listened_us = max(partition.listened_us, start_us)
                partition.led_epoch = partition.leader_epoch
                if self.gaps.open_since(partition.key) is None:
                    self._covered.add(partition)

    def may_lead(self, stream_ids: Container[int]) -> None:
        """This broker is registered, and so knows all streams that there are: what it leads from now on is subscribed
        to, or asked for.
        """
        self._may_lead = True
        self.gaps.keep_only(stream_ids)  # a start may know an older image only, without streams of which there are gaps
        if self._is_proven:
            self._is_proven = False
            self.subscriptions.prove()

    def remove(self, partition: Partition) -> None:
        """Its stream was deleted."""
        self.subscriptions.remove(partition)
        self._covered.discard(partition)
        self._refusals.pop(partition, None)
        self._waiting.discard(partition.key)
        if self.gaps.forget(partition.key):
            self._save()

    def took_over(self, partition: Partition, now: Now, reason: str, *, goes_on: bool) -> None:
        """Somebody listened there until `partition.listened_us`; a gap lasts until this broker does.

        `goes_on`: nobody but this broker led it since then, as far as it has led it at all.
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
        """Whether this broker was registered, and so knows all streams that there were then."""
        return self._may_lead

    def until_us(self, now_us: int) -> int:
        """The last time at which this broker was subscribed: `now_us`, or when its gap or the drain began."""
        known = (now_us, self._drained_us, self.gaps.open_since())
        return min(one for one in known if one is not None)

    def begins(self, partition: Partition) -> None:
        """Nobody was to listen there until now."""
        if self.gaps.is_open:
            self._covered.add(partition)

    def gaps_of(self, partition: Partition) -> tuple[GapInfo, ...]:
        """The times in which nobody listened there, as far as this broker keeps the account; the latest last."""
        return self.gaps.of(
            partition.key,
            partition.stream.created_us,
            with_broker=not partition.is_replicated,
            with_open=partition in self._covered,
        )

    def nobody(self, partition: Partition, now: Now) -> None:
        """Nobody leads it now. This broker may be the next who does, after a restart perhaps."""
        if partition in self._covered:
            return
        if self.gaps.begin(min(partition.listened_us, now.wall_us), NOBODY_LED, partition.key):
            self._waiting.add(partition.key)
            self._save()

    def led_elsewhere(self, partition: Partition, now: Now) -> None:
        """Another broker leads it from now on, and tells since when nobody did.

        What it cannot know is that this broker led and did not listen: that is told here.
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
        """Ask NATS for what the partition stores."""
        self.subscriptions.add(partition)

    def heard(self, groups: Mapping[int, Group]) -> Iterator[tuple[Partition, Group]]:
        """What one read of the connection brought, by subscription: whose it is."""
        subscriptions = self.subscriptions
        for sid, group in groups.items():
            if (partition := subscriptions.by_sid.get(sid)) is not None:
                yield from (((partition, group),) if partition.keys is None else own(partition, group, self._outbox))
            elif (channel := subscriptions.channels.get(sid)) is not None:
                yield from parted(channel, group, self._outbox)
            elif (partition := subscriptions.former.get(sid)) is not None:
                yield from self._heard_before(partition, group)
            # else the last messages of a stream that was just deleted

    def _heard_before(self, partition: Partition, group: Group) -> Iterator[tuple[Partition, Group]]:
        """What was sent to a partition before it listened elsewhere, since its stream got more of them."""
        channel = self.subscriptions.channel_of(partition)
        if channel is not None:
            yield from parted(channel, group, self._outbox)
        else:
            yield from own(partition, group, self._outbox)

    def listens(self, partition: Partition) -> bool:
        """Whether NATS was asked for its subscription."""
        return self.subscriptions.by_sid.get(partition.sid) is partition

    def paused(self, partition: Partition, now: Now) -> None:
        """Nobody is to listen there from now on: what gap it had is over."""
        self._covered.discard(partition)
        self._end(partition, now)

    def resign(self, partition: Partition, now: Now) -> None:
        """This broker listens there no more: until now it did, unless it has a gap."""
        self.subscriptions.remove(partition)
        self._refusals.pop(partition, None)
        until_us, own_us = self.until_us(now.wall_us), self.gaps.open_since(partition.key)
        partition.listened_us = until_us if own_us is None else min(until_us, own_us)
        if partition in self._covered and self.gaps.open is not None:
            self._covered.discard(partition)
            self.gaps.ended(self.gaps.open, now.wall_us, partition.key)
            self._save()

    def up(self) -> None:
        """The link is connected, and has subscribed everything again; what came of it shows behind a barrier."""
        self.has_nats, self._down_us = True, None
        self.subscriptions.up()

    def absent(self, now: Now) -> Iterator[tuple[Partition, bool]]:
        """What has not been listened to for too long, and whether NATS refuses that."""
        if self.has_nats:
            for partition, refusal in self._refusals.items():
                if now.elapsed_us >= refusal.since_us + _ABSENT_US:
                    yield partition, True
            return
        if self._down_us is None:
            self._down_us = now.elapsed_us
        if now.elapsed_us >= self._down_us + _ABSENT_US:
            for partition in self.subscriptions.by_sid.values():
                yield partition, False

    def lost(self, now: Now, reason: str) -> None:
        """The connection to NATS is gone: nobody listens from `now` on."""
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
        """NATS is left: what is published from then on may not come any more."""
        self._drained_us = until_us if self._drained_us is None else min(until_us, self._drained_us)

    def stop(self, now: Now) -> None:
        """The broker stops: the last gap has begun; blocking."""
        self._is_stopped = True
        self.gaps.begin(self.until_us(now.wall_us), "the broker was stopped")
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
        self._tell_confirmed(partition)

    def _end(self, partition: Partition, now: Now) -> GapInfo | None:
        """End the partition's own gap, if it has one; the gap, unless it lasted no time."""
        if self.gaps.open_since(partition.key) is None:
            return None
        gap = self.gaps.end(now.wall_us, partition.key)
        self._save()  # even if that lasted no time: the disk has it open
        return gap

    def _refused(self, partition: Partition, reason: str, now: Now) -> None:
        before = self._refusals.get(partition)
        self._refusals[partition] = _Refusal(reason, now.elapsed_us if before is None else before.since_us)
        if not self.gaps.is_open:
            self._begin_for(partition, reason, now)
        self._tell_refused(partition, reason)

    def _begin_for(self, partition: Partition, reason: str, now: Now) -> None:
        if self.gaps.begin(now.wall_us, f"NATS refused the subscription: {reason}", partition.key):
            self._save()

    def _settled(self, now: Now) -> None:
        if not self._may_lead:
            self._is_proven = True
            return
        if self.gaps.is_open:
            self._end_of_broker(now)
            self._save()
        for partition, refusal in self._refusals.items():
            self._begin_for(partition, refusal.reason, now)

    def _end_of_broker(self, now: Now) -> None:
        covered = [one for one in self._covered if not one.is_deaf]
        self._covered.clear()
        listening = [one for one in covered if self.listens(one)]
        began = self.gaps.drop()
        assert began is not None
        for partition in covered:
            if partition not in listening:  # its own lasts until somebody leads it
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
        """One writer at a time, or an older list could replace a newer one."""
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
