"""Requested and confirmed NATS subscriptions of partitions.

Rules: each subscription has its own id (`sid`), never reused in a run: late messages of an ended one are dropped. A
partition is subscribed once the PONG of a PING behind its SUB has come, and no refusal before it. nats-server answers
in order but does not always name the SUB it refuses: so each SUB has a barrier (PING) of its own, and a refusal without
a name belongs to the oldest pending barrier. Refused subscriptions are retried every NATS_SUBSCRIBE_RETRY_MS:
permissions come back, other subscriptions end.

Partitions of one stream that all receive its whole subject share a channel: one subscription, with an id of its own, so
that each message reaches this broker once. A partition that joins a channel takes nothing from it before a barrier has
returned, as if it had subscribed then: earlier messages may be another leader's, which has stored them.

After a reconnect the link renews all its subscriptions with one barrier; so the subscriptions still queued are given to
it when the connection is lost. If NATS then refuses one without a name, all are subscribed again one by one.

    down ──up──▶ proving ──barrier, nothing unclear──▶ settled
                    └──barrier, one was refused──▶ one by one ──last barrier──▶ settled
    any  ──lost─▶ down
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from penstock.base import limits
from penstock.base.clock import Now
from penstock.node.step import Barrier, Outbox, Subscribe, Unsubscribe


class Subscriber(Protocol):
    """Owner of a subscription, or of a part of one: a partition."""

    sid: int
    """Set by `Subscriptions.add`: id of its subscription, or of its part in a channel."""

    @property
    def subject(self) -> str: ...

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
    """One subscription of several listeners."""

    sid: int
    members: dict[L, bool]  # True for members that take messages; changed only by this class
    is_asked: bool = False  # it was requested, and not refused since
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
    refused: Callable[[L, str, Now], None]
    settled: Callable[[Now], None]  # after a reconnect all have their verdict


@dataclass(frozen=True, slots=True)
class _Asked(Generic[L]):
    """A pending barrier and the listener whose SUB precedes it; None for all that the link renewed.

    `reached`: callback of a barrier without a listener.
    """

    token: int
    listener: L | None
    reached: Callable[[], None] | None = None


class _Place(NamedTuple):
    """A listener's subject, queue group and channel."""

    subject: str
    queue: str | None
    channel: Hashable | None

    @classmethod
    def of(cls, listener: Subscriber) -> _Place:
        return cls(listener.subject, listener.queue, listener.channel)


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
        self._refused: set[L] = set()
        self._asked: deque[_Asked[L]] = deque()
        self._to_ask: dict[L, None] = {}  # in order, until a barrier is free (NATS_SUBSCRIBES_ASKED_MAX)
        self._is_up = False
        self._is_settled = False
        self._is_unclear = False  # a refusal named no subscription
        self._last_sid = 0
        self._last_token = 0
        self._retry_us: int | None = None

    def add(self, listener: L) -> None:
        """Subscribe under a new id; the verdict comes once NATS is connected."""
        listener.sid = self._new_sid()
        self.by_sid[listener.sid] = listener
        place = self._places[listener] = _Place.of(listener)
        if (key := place.channel) is not None:
            if (channel := self._channels.get(key)) is None:
                channel = self._channels[key] = SharedSubscription(self._new_sid(), {})
                self.channels[channel.sid] = channel
            channel.set(listener, takes=not (self._is_up and channel.is_asked))
        if self._is_up:
            self._to_ask[listener] = None
            self._ask_more()
        else:
            self._ask_first(listener)

    def _new_sid(self) -> int:
        self._last_sid += 1
        return self._last_sid

    def _ask_first(self, listener: L) -> None:
        sid = listener.sid
        if (channel := self._channel(listener)) is not None:
            if channel.is_asked:
                return
            channel.is_asked, sid = True, channel.sid
        self._outbox.step.nats.append(Subscribe(sid, listener.subject, listener.queue))

    def _channel(self, listener: L) -> SharedSubscription[L] | None:
        place = self._places[listener]
        return None if place.channel is None else self._channels[place.channel]

    def move_if_due(self, listener: L) -> None:
        """Move the listener to its new subject or channel; messages under the old id stay its own."""
        if listener not in self._places or self._places[listener] == _Place.of(listener):
            return
        before = listener.sid
        former = [sid for sid, one in self.former.items() if one is listener]
        self.remove(listener)
        self.add(listener)
        self.former |= dict.fromkeys((*former, before), listener)

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
            self._ask_barrier(None, reached)
        else:
            reached()

    def remove(self, listener: L) -> None:
        """End a subscription, or its part in one."""
        if self.by_sid.pop(listener.sid, None) is None:
            return
        place = self._places[listener]
        self.former = {sid: one for sid, one in self.former.items() if one is not listener}
        self._refused.discard(listener)
        self._to_ask.pop(listener, None)
        sid = listener.sid
        if (channel := self._channel(listener)) is not None:
            channel.remove(listener)
            sid = channel.sid
            if not channel.members:
                assert place.channel is not None
                del self._channels[place.channel], self.channels[channel.sid]
        del self._places[listener]
        if channel is None or not channel.members:
            self._outbox.step.nats.append(Unsubscribe(sid))

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
        self._is_up = self._is_settled = self._is_unclear = False
        self._refused.clear()
        waiting = [asked.reached for asked in self._asked if asked.reached is not None]
        self._asked.clear()
        for listener in self._to_ask:  # Unsubscribe first: the link may have it already, and takes no id twice.
            self._give(listener)
        self._to_ask.clear()
        self._retry_us = None
        for channel in self.channels.values():  # the next connection renews it, also if this one refused
            channel.is_asked = True
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
        elif listener.sid in self.by_sid and listener not in self._refused:
            if (channel := self._channel(listener)) is not None:
                channel.set(listener, takes=True)
            self._verdicts.confirmed(listener, now)
        self._ask_more()
        if not self._is_settled and not self._asked and not self._to_ask:
            self._is_settled = True
            self._verdicts.settled(now)

    def refused(self, sid: int | None, reason: str, now: Now) -> None:
        """Handle a refused or revoked subscription; `sid` is None if NATS does not name it."""
        if sid is not None and (channel := self.channels.get(sid)) is not None:
            self._refused_channel(channel, reason, now)
            return
        if sid is not None:
            listener = self.by_sid.get(sid)
            if listener is None:
                return
        else:
            listener = self._asked[0].listener if self._asked else None
        if listener is None:
            self._is_unclear = True
        elif listener.sid in self.by_sid:
            if (channel := self._channel(listener)) is not None:
                self._refused_channel(channel, reason, now)
            else:
                self._refused_one(listener, reason, now)

    def _refused_channel(self, channel: SharedSubscription[L], reason: str, now: Now) -> None:
        channel.is_asked = False
        for listener in list(channel.members):
            channel.set(listener, takes=True)  # it gets messages from its next subscription on
            self._refused_one(listener, reason, now)

    def _refused_one(self, listener: L, reason: str, now: Now) -> None:
        self._refused.add(listener)
        if self._retry_us is None:
            self._retry_us = now.elapsed_us + limits.NATS_SUBSCRIBE_RETRY_MS * 1_000
        self._verdicts.refused(listener, reason, now)

    def tick(self, now: Now) -> None:
        """Retry refused subscriptions when it is time."""
        if self._retry_us is None or now.elapsed_us < self._retry_us or not self._is_settled:
            return
        self._retry_us = None
        self._to_ask.update(dict.fromkeys(sorted(self._refused, key=lambda listener: listener.sid)))
        self._ask_more()

    def _proven(self, now: Now) -> None:
        waiting = {asked.listener for asked in self._asked} | self._to_ask.keys()
        rest = [one for one in self.by_sid.values() if one not in self._refused and one not in waiting]
        if self._is_unclear:
            self._is_unclear = False
            for channel in self.channels.values():
                channel.is_asked = False
            self._to_ask = {**dict.fromkeys(rest), **self._to_ask}
            return
        for listener in rest:
            self._verdicts.confirmed(listener, now)

    def _ask_more(self) -> None:
        while self._to_ask and len(self._asked) < limits.NATS_SUBSCRIBES_ASKED_MAX:
            listener = next(iter(self._to_ask))
            del self._to_ask[listener]
            self._refused.discard(listener)
            self._give(listener)
            self._ask_barrier(listener)

    def _give(self, listener: L) -> None:
        # Unsubscribe first: one that NATS may have already would count twice against its limits.
        sid = listener.sid
        if (channel := self._channel(listener)) is not None:
            if channel.is_asked:
                return
            channel.is_asked, sid = True, channel.sid
        self._outbox.step.nats += (Unsubscribe(sid), Subscribe(sid, listener.subject, listener.queue))

    def _ask_barrier(self, listener: L | None, reached: Callable[[], None] | None = None) -> None:
        self._last_token += 1
        self._asked.append(_Asked(self._last_token, listener, reached))
        self._outbox.step.nats.append(Barrier(self._last_token))
