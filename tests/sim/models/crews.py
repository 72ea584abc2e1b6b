"""What clients know of one consumer with acks, and what it may not do.

| invariant                                                                            | unless                       |
|--------------------------------------------------------------------------------------|------------------------------|
| a delivery is what its sequence has, on a subject that the filter lets through       |                              |
| what was acked, and that was answered, is not delivered again                        | permitted losses, a reset; a |
|                                                                                      | leader that slept, unless it |
|                                                                                      | commits first                |
| no message is delivered more than `max_deliver` times                                | as above                     |
| of a consumer that commits first: a count of a message, and a sequence of the        | as above                     |
| consumer, is told once                                                               |                              |
| … and a message is not delivered again before it is due                              | as above; a -NAK, another    |
|                                                                                      | config                       |
| with order by key: all earlier messages of the key are done                          | as above; they are gone      |
| an ack with a token that is none is not answered                                     |                              |
| a deleted consumer delivers nothing once its deletion was answered                   | permitted losses             |
| one whose creation was answered is there                                             | it may be deleted            |
| its ack floor does not step over a message that nobody acked                         | permitted losses, a reset    |
| num_pending + num_ack_pending counts all that is not done, and no more               | as above                     |
| at the end nothing is pending, and all that is there was delivered                   | max_deliver                  |

Rules: a message is *done* once any client has sent an ack for it that ends it, and *confirmed* once such an ack was
answered. An answer is as old as its way: what was sent before it may come a moment later. A request that was not
answered may be carried out later; until then a consumer may be gone, or begin anew.
"""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.testing.errors import ViolationError
from penstock.testing.simulation.nats import PublishedMessage
from tests.sim.models.api_stream import ApiStream

_ACK = re.compile(rb"\$JS\.ACK\.([^.]+)\.([^.]+)\.(\d+)\.(\d+)\.(\d+)\.(\d+)\.(\d+)")
_WAY_US = 3_000_000  # longest time that a message is on its way
_OPEN_US = 25_000_000  # what was not answered may be carried out later, but not so late
_EARLY_US = 8_000_000  # a wait begins when a delivery is decided; it is sent once that is committed
_NEVER_US = 1 << 62


@dataclass(frozen=True, slots=True)
class CrewRules:
    """A consumer, as its clients want it."""

    name: str
    config: dict[str, Any]
    waits_us: tuple[int, ...]  # for the ack of the first, second, … delivery
    max_deliver: int = 0  # 0: no limit
    wanted: bytes = b""  # the filter
    is_ordered: bool = False
    is_push: bool = False
    is_patient: bool = False  # no client sends a -NAK, but late ones
    most_in_hand: int = 1_000
    letters: str = ""  # stream of its dead letters; it is not deleted, nor reset

    @property
    def commits_first(self) -> bool:
        return self.max_deliver > 0 or self.is_ordered


class Delivery(NamedTuple):
    """One message in the hand of a client."""

    offset: int
    number: int  # of the deliveries of its message
    sequence: int  # of the consumer
    reply: bytes
    sent_us: int  # its broker decided it then
    era: int  # of the crew


@dataclass(slots=True)
class _Era:
    """A consumer between two beginnings: its creation, a reset, a permitted loss."""

    begins_at: int  # first offset, at the latest
    may_begin_at: int  # first offset, at the earliest
    seen: set[int] = field(default_factory=set)  # offsets that came, though perhaps before it began
    delivered: dict[int, list[Delivery]] = field(default_factory=dict)  # by offset
    sequences: dict[int, int] = field(default_factory=dict)  # of the consumer → offset
    done: dict[int, int] = field(default_factory=dict)  # offset → when the delivery was sent that was acked
    confirmed: dict[int, int] = field(default_factory=dict)  # offset → when
    refused: set[int] = field(default_factory=set)  # a -NAK or +WPI was sent that may count


class Crew:
    """A consumer, and what its clients were told."""

    def __init__(self, stream: ApiStream, rules: CrewRules) -> None:
        self.stream = stream
        self.rules = rules
        self.created = ""  # as the broker tells it; empty: it is not made
        self.era = 0
        self.loose_until_us = 0  # a request may be carried out until then
        self.deleted_us: int | None = None  # its deletion was answered
        self.remade_us = _NEVER_US  # one with its name was asked for since
        self.is_deleting = False
        self.delivered = 0
        self._losses = self._now_losses
        self._state = _Era(0, 0)
        self._since_us = 0  # the present era may have begun then
        self._asked_us = _NEVER_US  # a change was asked for that is not answered
        self._least = -1  # consumer's sequence that a client has seen
        self._latest = 0  # the last offset at which it has ever begun

    # Beginning and end

    @property
    def name(self) -> str:
        return f"{self.stream.name}/{self.rules.name}"

    @property
    def _now_losses(self) -> tuple[int, int]:
        consumers = self.stream.history.consumers
        return self.stream.losses, 0 if consumers is None else len(consumers.cuts)

    @property
    def is_excused(self) -> bool:
        """True if what was promised is void."""
        consumers = self.stream.history.consumers
        is_lost = consumers is not None and (
            consumers.is_damaged or consumers.is_given_up or consumers.may_lose or bool(consumers.damaged)
        )
        return self.stream.is_excused or is_lost

    @property
    def has_lost(self) -> bool:
        """True after a permitted loss."""
        return self._now_losses != (0, 0)

    def _is_loose(self, now_us: int) -> bool:
        if self._losses != self._now_losses:
            self._losses = self._now_losses
            done = self._state.done  # acks and resets before it may be there, or lost
            self.begin_again(now_us, 0)
            self._state.begins_at = self._latest
            self._state.done = {**done}
        return self.is_excused or now_us < self.loose_until_us

    def begin_again(self, now_us: int, loose_us: int, begins_at: int = 0) -> None:
        """All that is known of it counts no more."""
        self.era += 1
        self._since_us = min(now_us - _WAY_US, self._asked_us)
        done = {offset: sent_us for offset, sent_us in self._state.done.items() if sent_us > self._since_us}
        self._latest = max(self._latest, begins_at)
        self._state = _Era(begins_at, begins_at, done=done)
        self._least = -1
        self.loose_until_us = max(self.loose_until_us, now_us + loose_us)

    def asks_for_change(self, now_us: int) -> None:
        """A deletion or a reset is asked for: anything may be until it is answered."""
        self._asked_us = now_us
        self.loose_until_us = _NEVER_US

    def changed(self, now_us: int, *, is_sure: bool, begins_at: int = 0) -> None:
        """It was answered; `is_sure`: no other such request is under way."""
        self.loose_until_us = now_us
        self.begin_again(now_us, _WAY_US if is_sure else _OPEN_US, begins_at)
        self._asked_us = _NEVER_US

    def made(self, created: str, now_us: int) -> None:
        """It is there; `created`: tells it from others with its name."""
        if self.created and created != self.created and not self._is_loose(now_us):
            raise ViolationError(f"{self.name}: it was made at {self.created}, and is one of {created}")
        if created != self.created:
            self.created = created
            self.begin_again(now_us, _WAY_US)
        self.deleted_us = None

    def missing(self, now_us: int) -> None:
        """A broker says that there is none."""
        if self.created and self.deleted_us is None and not self._is_loose(now_us) and not self.is_deleting:
            raise ViolationError(f"{self.name}: it was made at {self.created}, and is not found")

    # Deliveries

    def received(self, message: PublishedMessage, now_us: int) -> Delivery:
        """Check a delivery."""
        found = _ACK.fullmatch(message.reply)
        if found is None or (found[1].decode(), found[2].decode()) != (self.stream.name, self.rules.name):
            raise ViolationError(f"{self.name}: delivered with {message.reply!r}")
        offset, count, sequence = int(found[4]) - 1, int(found[3]), int(found[5])
        self.stream.reads(offset, message.subject, message.value, self.name)
        if not self.stream.matches(message.subject, self.rules.wanted):
            raise ViolationError(f"{self.name}: {message.subject!r} does not match {self.rules.wanted!r}")
        self.delivered += 1
        is_loose = self._is_loose(now_us)
        one = Delivery(offset, count, sequence, message.reply, message.decided_us, self.era)
        if self.deleted_us is not None:
            if self.deleted_us < one.sent_us < self.remade_us and not self.is_excused:
                raise ViolationError(f"{self.name}: {one} is delivered, and it was deleted at {self.deleted_us} us")
        elif not is_loose:
            self._check(one)
        self._state.seen.add(offset)
        if not is_loose:
            self._note(one)
        return one

    def _note(self, one: Delivery) -> None:
        self._state.delivered.setdefault(one.offset, []).append(one)
        self._state.sequences[one.sequence] = one.offset
        self._least = max(self._least, one.sequence)

    def _check(self, one: Delivery) -> None:
        rules, state = self.rules, self._state
        before = state.delivered.get(one.offset, [])
        where = f"{self.name}: offset {one.offset}, delivery {one.number}, sequence {one.sequence}"
        confirmed_us = state.confirmed.get(one.offset)
        if confirmed_us is not None and one.sent_us > confirmed_us:
            raise ViolationError(f"{where}: its ack was answered at {confirmed_us} us")
        if rules.max_deliver and max(one.number, len(before) + 1) > rules.max_deliver:
            raise ViolationError(f"{where}: it came {len(before)} times before, of {rules.max_deliver} at most")
        if not rules.commits_first:
            return
        if any(other.number == one.number for other in before):
            raise ViolationError(f"{where}: it came as {[other.number for other in before]} before")
        if one.sequence in state.sequences:
            raise ViolationError(f"{where}: offset {state.sequences[one.sequence]} had this sequence")
        if before and before[-1].number == one.number - 1:
            self._check_due(where, before[-1], one)
        if rules.is_ordered:
            self._check_order(where, one)

    def _check_due(self, where: str, before: Delivery, one: Delivery) -> None:
        waits_us = self.rules.waits_us
        wait_us = waits_us[min(before.number, len(waits_us)) - 1]
        if one.offset not in self._state.refused and one.sent_us < before.sent_us + wait_us - _EARLY_US:
            text = f"it is sent at {one.sent_us} us, was sent at {before.sent_us} us, and is due {wait_us} us later"
            raise ViolationError(f"{where}: {text}")

    def _check_order(self, where: str, one: Delivery) -> None:
        """Check that no earlier message of its key waits for an ack."""
        known = self.stream.history.known
        if one.offset not in known:
            return
        subject = self.stream.subject(known[one.offset])
        earlier = [
            offset
            for offset in self._unfinished()
            if offset < one.offset and self.stream.subject(known[offset]) == subject
        ]
        if earlier:
            raise ViolationError(f"{where}: {earlier} of its key are not done")

    def _unfinished(self) -> list[int]:
        """Return the messages that are there, surely, and that nobody has acked."""
        live = self.stream.live_of(self.rules.wanted, self._state.begins_at)
        return [offset for offset in live if offset not in self._state.done]

    # Acks

    def is_now(self, one: Delivery) -> bool:
        return one.era == self.era

    def is_late(self, one: Delivery) -> bool:
        """True if the message was delivered again since."""
        deliveries = self._state.delivered.get(one.offset, [])
        return self.is_now(one) and bool(deliveries) and deliveries[-1].sequence > one.sequence

    def sends_done(self, one: Delivery) -> None:
        if self.is_now(one) or one.sent_us > self._since_us:
            self._state.done[one.offset] = one.sent_us

    def sends_more(self, one: Delivery) -> None:
        """A -NAK or +WPI is sent, that is not late."""
        if self.is_now(one):
            self._state.refused.add(one.offset)

    def confirms(self, one: Delivery, now_us: int) -> None:
        """An ack that ends a message was answered."""
        if self.is_now(one) and not self._is_loose(now_us):
            self._state.confirmed.setdefault(one.offset, now_us)

    def is_confirmed(self, offset: int) -> bool:
        return offset in self._state.confirmed

    # What it tells

    def asked(self) -> Asked:
        """Note what is known when its info is asked for."""
        unfinished = self._unfinished()
        sure = 0 if self.rules.max_deliver else len(unfinished)
        return Asked(self.era, self._least, sure, tuple(unfinished), frozenset(self._state.confirmed))

    def told(self, asked: Asked, fields: dict[str, Any], now_us: int) -> None:
        """Check an info."""
        self.made(fields["created"], now_us)
        if self._is_loose(now_us) or asked.era != self.era:
            return
        floor, delivered = fields["ack_floor"], fields["delivered"]
        in_hand, pending = fields["num_ack_pending"], fields["num_pending"]
        where = f"{self.name}: {delivered}, floor {floor}, {in_hand} in hand, {pending} pending"
        if self.rules.commits_first and delivered["consumer_seq"] < asked.sequence:
            raise ViolationError(f"{where}: a client was sent sequence {asked.sequence} before")
        if floor["consumer_seq"] > delivered["consumer_seq"] or floor["stream_seq"] > delivered["stream_seq"]:
            raise ViolationError(f"{where}: the floor is above what was delivered")
        still = {*self._unfinished()}
        if not self.rules.max_deliver:
            stepped_over = [one for one in asked.unfinished if one < floor["stream_seq"] and one in still]
            if stepped_over:
                raise ViolationError(f"{where}: nobody has acked offsets {stepped_over}")
            least = len([one for one in asked.unfinished if one in still])
            if in_hand + pending < least:
                raise ViolationError(f"{where}: {least} messages are not done: {sorted(still)}")
        if in_hand > self.rules.most_in_hand:
            raise ViolationError(f"{where}: {self.rules.most_in_hand} may be in hand")
        most = self.stream.sent_count(self.rules.wanted, self._state.may_begin_at - 1, {*self.stream.deleted})
        most -= len([one for one in asked.confirmed if self.stream.is_live(one)])
        if in_hand + pending > most:
            raise ViolationError(f"{where}: {most} messages may be left")

    # The end

    def undelivered(self) -> list[int]:
        """Return the messages that are there and were never delivered to a client, nor given up."""
        if self.rules.max_deliver:
            return []
        return [one for one in self._unfinished() if one not in self._state.seen]

    def without_letters(self, letters: Set[int]) -> list[int]:
        """Return the messages that are there, that nobody acked, and that have no letter."""
        return [one for one in self._unfinished() if one not in letters]


class Asked(NamedTuple):
    """What was known when an info was asked for."""

    era: int
    sequence: int
    sure: int
    unfinished: tuple[int, ...]
    confirmed: frozenset[int]
