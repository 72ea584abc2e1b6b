"""Requested and confirmed NATS subscriptions of partitions.

Rules: a partition has one subscription for each of its subjects. Their ids have the partition's id (`sid`) in the lower
bits, so that all its messages of one read are one group, in the order of their arrival (`penstock.hot.scan`). A `sid`
is never reused in a run: late messages of an ended one are dropped. A partition is subscribed once the PONG of a PING
behind each SUB has come, and no refusal before it. nats-server answers in order but does not always name the SUB it
refuses: so each SUB has a barrier (PING) of its own, and a refusal without a name belongs to the oldest pending
barrier. Refused subscriptions are retried every NATS_SUBSCRIBE_RETRY_MS: permissions come back, other subscriptions
end. The other subjects of the partition go on meanwhile.

A partition whose subjects change ends the subscriptions of some and makes those of others; a barrier behind that shows
that everything sent before has arrived.

Partitions of one stream that all receive its whole subjects share a channel: one subscription for each subject, with
an id of its own, so that each message reaches this broker once. A partition that joins a channel takes nothing from it
before a barrier has returned, as if it had subscribed then: earlier messages may be another leader's, which has stored
them.

After a reconnect the link renews all its subscriptions with one barrier; so the subscriptions still queued are given to
it when the connection is lost. If NATS then refuses one without a name, all are subscribed again one by one.

    down ──up──▶ proving ──barrier, nothing unclear──▶ settled
                    └──barrier, one was refused──▶ one by one ──last barrier──▶ settled
    any  ──lost─▶ down
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.base import limits
from penstock.base.clock import Now
from penstock.hot.scan import GROUP_BITS
from penstock.node.step import Barrier, Outbox, Subscribe, Unsubscribe

_OWNER_MASK = (1 << GROUP_BITS) - 1


class Subscriber(Protocol):
    """Owner of subscriptions, or of a part of some: a partition."""

    sid: int
    """Set by `Subscriptions.add`: lower bits of the ids of its subscriptions, or id of its part in a channel."""

    @property
    def subjects(self) -> tuple[str, ...]: ...

    @property
    def queue(self) -> str | None:
        """NATS queue group."""
        ...

    @property
    def channel(self) -> Hashable | None:
        """Key of the shared channel; None for a subscription of its own."""
        ...


L = TypeVar("L", bound=Subscriber)


@dataclass(slots=True, eq=False)
class SharedSubscription(Generic[L]):
    """The subscriptions of several listeners, one for each subject."""

    sid: int
    members: dict[L, bool]  # True for members that take messages; changed only by this class
    ids: dict[str, int] = field(default_factory=dict)  # of the subscriptions, by subject
    asked: set[str] = field(default_factory=set)  # the subjects whose subscription was requested, and not refused since
    note: object = None  # cache for the code that splits messages; derived from the members

    def set(self, listener: L, *, takes: bool) -> None:
        """Add or change a member; `takes` is True if it takes messages."""
        self.members[listener] = takes
        self.note = None

    def remove(self, listener: L) -> None:
        del self.members[listener]
        self.note = None


@dataclass(frozen=True, slots=True)
class SubscriptionListener(Generic[L]):
    """Callbacks for NATS's verdicts."""

    confirmed: Callable[[L, Now], None]
    refused: Callable[[L, str, str, Now], None]  # with the subject and the reason
    partly: Callable[[L, Now], None]  # every subject has its verdict: some are confirmed and some refused
    settled: Callable[[Now], None]  # after a reconnect all have their verdict


class _Wanted(NamedTuple, Generic[L]):
    """A verdict that a listener waits for: of its subscription to a subject; None: only that a barrier returns."""

    listener: L
    subject: str | None


@dataclass(frozen=True, slots=True)
class _Asked(Generic[L]):
    """A pending barrier and the listener whose SUB precedes it; None for all that the link renewed.

    `sid`: the listener's as it was then. `reached`: callback of a barrier without a listener.
    """

    token: int
    listener: L | None
    subject: str | None = None
    sid: int = 0
    reached: Callable[[], None] | None = None


class _Place(NamedTuple):
    """A listener's subjects, queue group and channel; and the ids of its own subscriptions, by subject."""

    subjects: tuple[str, ...]
    queue: str | None
    channel: Hashable | None
    ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, listener: Subscriber) -> _Place:
        return cls(listener.subjects, listener.queue, listener.channel)


class Subscriptions(Generic[L]):
    """The subscriptions of all partitions that this broker leads. See the module's rules."""

    def __init__(self, outbox: Outbox, verdicts: SubscriptionListener[L]) -> None:
        self.by_sid: dict[int, L] = {}  # all listeners, by their id
        self.channels: dict[int, SharedSubscription[L]] = {}  # by id of the subscription
        self._channels: dict[Hashable, SharedSubscription[L]] = {}
        self._places: dict[L, _Place] = {}  # as of the subscription's begin
        self.former: dict[int, L] = {}  # listeners that have moved, by the old id under which messages may still arrive
        self._outbox = outbox
        self._verdicts = verdicts
        self._refused: dict[L, set[str]] = {}
        self._asked: deque[_Asked[L]] = deque()
        self._to_ask: dict[_Wanted[L], None] = {}  # in order, until a barrier is free (NATS_SUBSCRIBES_ASKED_MAX)
        self._pending: Counter[int] = Counter()  # verdicts still to come, by id of the listener
        self._is_up = False
        self._is_settled = False
        self._is_proven = False  # on this connection the barrier behind the renewed subscriptions has returned
        self._is_unclear = False  # a refusal named no subscription
        self._last_sid = 0
        self._last_token = 0
        self._retry_us: int | None = None

    def add(self, listener: L) -> None:
        """Subscribe under a new id; the verdict comes once NATS is connected."""
        listener.sid = self._new_sid()
        self.by_sid[listener.sid] = listener
        subjects, key = listener.subjects, listener.channel
        ids = [number << GROUP_BITS | listener.sid for number in range(len(subjects) if key is None else 0)]
        self._places[listener] = _Place(subjects, listener.queue, key, tuple(ids))
        if key is not None:
            if (channel := self._channels.get(key)) is None:
                channel = self._channels[key] = SharedSubscription(self._new_sid(), {})
                self.channels[channel.sid] = channel
            _extend(channel, subjects)
            channel.set(listener, takes=not (self._is_up and channel.asked))
        self._want(listener, subjects)

    def _new_sid(self) -> int:
        self._last_sid += 1
        assert self._last_sid <= _OWNER_MASK
        return self._last_sid

    def _want(self, listener: L, subjects: Iterable[str]) -> None:
        """Subscribe to subjects that are new, or at least wait for a barrier."""
        if not self._is_up:
            for subject in subjects:
                self._ask_first(listener, subject)
            return
        channel = self._channel(listener)
        new = [one for one in subjects if channel is None or one not in channel.asked]
        self._queue([_Wanted(listener, one) for one in new or (None,)])
        self._ask_more()

    def _queue(self, wanted: Iterable[_Wanted[L]]) -> None:
        for one in wanted:
            if one not in self._to_ask:
                self._to_ask[one] = None
                self._pending[one.listener.sid] += 1

    def _ask_first(self, listener: L, subject: str) -> None:
        if (channel := self._channel(listener)) is not None:
            if subject in channel.asked:
                return
            channel.asked.add(subject)
        self._outbox.step.nats.append(Subscribe(self._id(listener, subject), subject, listener.queue))

    def _id(self, listener: L, subject: str) -> int:
        """Return the id of the subscription through which the listener hears that subject."""
        if (channel := self._channel(listener)) is not None:
            return channel.ids[subject]
        place = self._places[listener]
        return place.ids[place.subjects.index(subject)]

    def _channel(self, listener: L) -> SharedSubscription[L] | None:
        place = self._places[listener]
        return None if place.channel is None else self._channels[place.channel]

    def subjects_of(self, listener: L) -> tuple[str, ...]:
        """Return the subjects to which the listener is, or is being, subscribed; empty if it does not listen."""
        place = self._places.get(listener)
        return () if place is None else place.subjects

    def refused_of(self, listener: L) -> list[str]:
        """Return those of its subjects that NATS refuses now."""
        refused = self._refused.get(listener, ())
        return [one for one in self.subjects_of(listener) if one in refused]

    def move_if_due(self, listener: L) -> bool:
        """Move the listener to its new subjects or channel; messages under the old ids stay its own.

        Return True if it had to be moved: it is to be confirmed again.
        """
        if (place := self._places.get(listener)) is None:
            return False
        due = _Place.of(listener)
        channel = self._channel(listener)
        # Another member of the channel may have ended a subscription that is wanted again by now.
        has_all = channel is None or channel.ids.keys() >= {*due.subjects}
        if place[:3] == due[:3] and has_all:
            return False
        if place.channel == due.channel and place.queue == due.queue:
            self._change_subjects(listener, place, due.subjects)
            return True
        before = listener.sid
        former = [sid for sid, one in self.former.items() if one is listener]
        self.remove(listener)
        self.add(listener)
        self.former |= dict.fromkeys((*former, before), listener)
        return True

    def _change_subjects(self, listener: L, place: _Place, subjects: tuple[str, ...]) -> None:
        gone = [one for one in place.subjects if one not in subjects]
        for subject in gone:
            self._forget(listener, subject)
        channel = self._channel(listener)
        ids = dict(zip(place.subjects, place.ids, strict=True)) if channel is None else channel.ids
        for subject in gone:
            if (sid := ids.pop(subject, None)) is not None:  # else another member of the channel has ended it
                self._outbox.step.nats.append(Unsubscribe(sid))
            if channel is not None:
                channel.asked.discard(subject)
        new = [one for one in subjects if one not in ids or one not in place.subjects]
        if channel is not None:
            _extend(channel, subjects)
            self._places[listener] = place._replace(subjects=subjects)
        else:
            ids |= zip((one for one in subjects if one not in ids), _free_ids(listener.sid, ids.values()), strict=False)
            self._places[listener] = place._replace(subjects=subjects, ids=tuple(ids[one] for one in subjects))
        self._want(listener, new)

    def _forget(self, listener: L, subject: str | None) -> None:
        """Drop what is known and wanted of one subject."""
        if (wanted := _Wanted(listener, subject)) in self._to_ask:
            del self._to_ask[wanted]
            self._pending[listener.sid] -= 1
        if subject is not None and (refused := self._refused.get(listener)) is not None:
            refused.discard(subject)
            if not refused:
                del self._refused[listener]

    def find(self, sid: int) -> L | None:
        """Return the listener that has or had that id."""
        return self.by_sid.get(sid) or self.former.get(sid)

    def channel_of(self, listener: L) -> SharedSubscription[L] | None:
        """Return its channel, if any."""
        return self._channel(listener) if listener in self._places else None

    def look_again(self, listener: L) -> None:
        """Drop the channel's cache: its messages are to be split differently."""
        if listener in self._places and (channel := self._channel(listener)) is not None:
            channel.note = None

    def after_all_sent(self, reached: Callable[[], None]) -> None:
        """Call `reached` once everything that NATS has sent until now has arrived."""
        if self._is_up:
            self._ask_barrier(None, reached=reached)
        else:
            reached()

    def remove(self, listener: L) -> None:
        """End its subscriptions, or its part in some."""
        if self.by_sid.pop(listener.sid, None) is None:
            return
        place = self._places[listener]
        left = [one for one in place.subjects if _Wanted(listener, one) in self._to_ask]
        self.former = {sid: one for sid, one in self.former.items() if one is not listener}
        for subject in (*place.subjects, None):
            self._forget(listener, subject)
        del self._pending[listener.sid]
        ended: Iterable[int] = place.ids
        if (channel := self._channel(listener)) is not None:
            channel.remove(listener)
            if not channel.members:
                assert place.channel is not None
                del self._channels[place.channel], self.channels[channel.sid]
                ended = channel.ids.values()
            else:  # what it was about to ask for, another member asks for; what no other one hears ends
                heir = next(iter(channel.members))
                self._queue(_Wanted(heir, one) for one in left if one in self._places[heir].subjects)
                heard = {subject for member in channel.members for subject in self._places[member].subjects}
                ended = [channel.ids.pop(one) for one in place.subjects if one not in heard and one in channel.ids]
                channel.asked &= heard
        del self._places[listener]
        self._outbox.step.nats += map(Unsubscribe, ended)

    def up(self) -> None:
        """Handle a connection with all subscriptions renewed. Some may follow the link's barrier: send another one."""
        self._is_up = True
        self._ask_barrier(None)

    def prove(self) -> None:
        """Report `settled` again once all subscriptions requested so far have their verdict."""
        self._is_settled = False
        self._ask_barrier(None)

    def lost(self) -> None:
        """Forget all verdicts: the connection is lost."""
        self._is_up = self._is_settled = self._is_proven = self._is_unclear = False
        self._refused.clear()
        waiting = [asked.reached for asked in self._asked if asked.reached is not None]
        self._asked.clear()
        for wanted in self._to_ask:  # Unsubscribe first: the link may have it already, and takes no id twice.
            self._give(wanted)
        self._to_ask.clear()
        self._pending.clear()
        self._retry_us = None
        for channel in self.channels.values():  # the next connection renews it, also if this one refused
            channel.asked.update(channel.ids)
            for listener in channel.members:
                channel.set(listener, takes=True)
        for reached in waiting:
            reached()

    def reached(self, token: int, now: Now) -> None:
        """Handle NATS's answer to the barrier `token`. Tokens of an earlier connection are ignored."""
        if not self._asked or self._asked[0].token != token:
            return
        asked = self._asked.popleft()
        listener = asked.listener
        if asked.reached is not None:
            asked.reached()
        elif listener is None:
            self._proven(now)
        elif self.by_sid.get(asked.sid) is listener:
            self._heard(listener, now)
        self._ask_more()
        if not self._is_settled and not self._asked and not self._to_ask:
            self._is_settled = True
            self._verdicts.settled(now)

    def _heard(self, listener: L, now: Now) -> None:
        """Handle the verdict on one subject of a listener; the last one is the verdict on all."""
        if (channel := self._channel(listener)) is not None:
            channel.set(listener, takes=True)
        self._pending[listener.sid] -= 1
        if not self._pending[listener.sid]:
            del self._pending[listener.sid]
            self._judge(listener, now)

    def _judge(self, listener: L, now: Now) -> None:
        refused = self._refused.get(listener, ())
        if not refused:
            self._verdicts.confirmed(listener, now)
        elif len(refused) < len(self._places[listener].subjects):
            self._verdicts.partly(listener, now)

    def refused(self, sid: int | None, reason: str, now: Now) -> None:
        """Handle a refused or revoked subscription; `sid` is None if NATS does not name it."""
        if sid is not None:
            owner = sid & _OWNER_MASK
            if (channel := self.channels.get(owner)) is not None:
                subject = next((one for one, kept in channel.ids.items() if kept == sid), None)
                if subject is not None:
                    self._refused_channel(channel, subject, reason, now)
            elif (listener := self.by_sid.get(owner)) is not None:
                place = self._places[listener]
                if sid in place.ids:
                    self._refused_one(listener, place.subjects[place.ids.index(sid)], reason, now)
            return
        asked = self._asked[0] if self._asked else None
        if asked is None or asked.listener is None or asked.subject is None:
            self._is_unclear = True
        elif self.by_sid.get(asked.sid) is asked.listener and asked.subject in self.subjects_of(asked.listener):
            if (channel := self._channel(asked.listener)) is not None:
                self._refused_channel(channel, asked.subject, reason, now)
            else:
                self._refused_one(asked.listener, asked.subject, reason, now)

    def _refused_channel(self, channel: SharedSubscription[L], subject: str, reason: str, now: Now) -> None:
        channel.asked.discard(subject)
        for listener in list(channel.members):
            if not channel.asked:
                channel.set(listener, takes=True)  # it gets messages from its next subscription on
            if subject in self._places[listener].subjects:
                self._refused_one(listener, subject, reason, now)

    def _refused_one(self, listener: L, subject: str, reason: str, now: Now) -> None:
        self._refused.setdefault(listener, set()).add(subject)
        if self._retry_us is None:
            self._retry_us = now.elapsed_us + limits.NATS_SUBSCRIBE_RETRY_MS * 1_000
        self._verdicts.refused(listener, subject, reason, now)
        if self._is_proven and not self._pending[listener.sid]:  # revoked, or asked for by another of its channel
            self._judge(listener, now)

    def tick(self, now: Now) -> None:
        """Retry refused subscriptions when it is time."""
        if self._retry_us is None or now.elapsed_us < self._retry_us or not self._is_settled:
            return
        self._retry_us = None
        listeners = sorted(self._refused, key=lambda listener: listener.sid)
        self._queue(_Wanted(one, subject) for one in listeners for subject in self.refused_of(one))
        self._ask_more()

    def _proven(self, now: Now) -> None:
        self._is_proven = True
        if not self._is_unclear:
            for listener in [one for one in self.by_sid.values() if not self._pending[one.sid]]:
                self._judge(listener, now)
            return
        self._is_unclear = False
        for channel in self.channels.values():
            channel.asked.clear()
        later, self._to_ask = self._to_ask, {}
        known = {_Wanted(one.listener, one.subject) for one in self._asked if one.listener is not None} | later.keys()
        for listener, place in self._places.items():
            refused = self._refused.get(listener, ())
            wanted = (_Wanted(listener, one) for one in place.subjects if one not in refused)
            self._queue(one for one in wanted if one not in known)
        self._to_ask.update(later)

    def _ask_more(self) -> None:
        while self._to_ask and len(self._asked) < limits.NATS_SUBSCRIBES_ASKED_MAX:
            wanted = next(iter(self._to_ask))
            del self._to_ask[wanted]
            listener, subject = wanted
            if subject is not None and (refused := self._refused.get(listener)) is not None:
                refused.discard(subject)
                if not refused:
                    del self._refused[listener]
            self._give(wanted)
            self._ask_barrier(listener, subject)

    def _give(self, wanted: _Wanted[L]) -> None:
        # Unsubscribe first: one that NATS may have already would count twice against its limits.
        listener, subject = wanted
        if subject is None:
            return
        if (channel := self._channel(listener)) is not None:
            if subject in channel.asked or subject not in channel.ids:  # not: another member has ended it
                return
            channel.asked.add(subject)
        sid = self._id(listener, subject)
        self._outbox.step.nats += (Unsubscribe(sid), Subscribe(sid, subject, listener.queue))

    def _ask_barrier(
        self, listener: L | None, subject: str | None = None, reached: Callable[[], None] | None = None
    ) -> None:
        self._last_token += 1
        sid = 0 if listener is None else listener.sid
        self._asked.append(_Asked(self._last_token, listener, subject, sid, reached))
        self._outbox.step.nats.append(Barrier(self._last_token))


def _free_ids(sid: int, taken: Iterable[int]) -> Iterator[int]:
    """Yield ids of subscriptions of one owner that are not in use. An owner's first one has its own id."""
    used = frozenset(taken)
    return (one for number in count() if (one := number << GROUP_BITS | sid) not in used)


def _extend(channel: SharedSubscription[L], subjects: Iterable[str]) -> None:
    """Give the channel ids for subjects that it does not have yet."""
    new = [one for one in subjects if one not in channel.ids]
    channel.ids.update(zip(new, _free_ids(channel.sid, channel.ids.values()), strict=False))
