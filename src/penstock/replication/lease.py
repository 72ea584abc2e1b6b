"""Leader lease: while it holds, no other broker can have acked what a partition's leader lacks (ADR 92).

Rules:

1. A broker promises another one, on request, for all partitions: a leadership that begins here later, by metadata
   behind index N, commits nothing for LEADER_LEASE_MS. It counts from its answer; the leader counts from its request,
   and LEASE_MARGIN less, as their clocks may run at different rates.
2. A leader has the lease of a partition while all brokers that may lead it next have promised: those that must have a
   message before it is committed, and the eligible and unsure replicas. It must have applied index N of each promise:
   a leadership that began there by then is not bound. Until that index is applied, the promise before counts.
3. A bound leadership commits nothing, and no replica joins its ISR: that one could lead next, and would not be bound.
4. A promise binds no longer once the broker that it was given to cannot lead by old metadata any more: it fetches in
   the new epoch, or has stopped on purpose (before that it uses no lease). That it has been registered anew does not
   say so: a registration that was sent twice may arrive late.
5. Promises are in memory. A broker that starts is bound as if it had promised everything just before.

So at most one broker answers look-ups by a lease and acks messages of a partition. Only elapsed time counts. A broker
that was suspended between reading the clock and answering answers with what was true then, after it was asked.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.ids import BrokerId

_LEASE_US = limits.LEADER_LEASE_MS * 1_000
NEVER_US = 2**63 - 1
"""A time that does not come."""


class RegisteredBroker(Protocol):
    """A broker in the metadata image."""

    @property
    def is_live(self) -> bool:
        """True if it is registered, and neither fenced nor stopped since."""

    @property
    def clean_stop(self) -> bool:
        """True if it stopped on purpose, unless it is live."""


class GivenPromises:
    """The promises of one broker to others, at most one for each broker in the metadata. Times are elapsed."""

    def __init__(self, started_us: int) -> None:
        """`started_us`: when this process started."""
        self._forgotten_until_us = started_us + _LEASE_US  # promises of an earlier process
        self._given: dict[BrokerId, int] = {}  # until when

    def give(self, broker_id: BrokerId, now_us: int) -> None:
        """Promise it to a broker, from now on."""
        self._given[broker_id] = now_us + _LEASE_US

    def binding(
        self, others: Iterable[BrokerId], brokers: Mapping[BrokerId, RegisteredBroker], now_us: int
    ) -> dict[BrokerId, int]:
        """Return the promises that bind a leadership that begins now, and until when; `others`: the other replicas."""
        found = {}
        for broker_id in others:
            broker = brokers.get(broker_id)
            if broker is None or (not broker.is_live and broker.clean_stop):
                continue
            until_us = max(self._forgotten_until_us, self._given.get(broker_id, 0))
            if until_us > now_us:
                found[broker_id] = until_us
        return found


class _Held(NamedTuple):
    until_us: int
    applied_index: int


class HeldPromises:
    """The promises of other brokers to this one. Times are elapsed."""

    def __init__(self) -> None:
        self._held: dict[BrokerId, tuple[_Held, ...]] = {}  # the newest one, and the one before
        self._asked_us: dict[BrokerId, int] = {}  # since when a request is under way
        self._refused_us: dict[BrokerId, int] = {}  # when one was refused, until one is given

    def clear(self) -> None:
        """Forget all, also what is under way: they were given to an earlier incarnation."""
        self._held.clear()
        self._asked_us.clear()
        self._refused_us.clear()

    def cover(self, successors: Collection[BrokerId], index: int, now_us: int) -> bool:
        """True if all of these have promised; `index`: the metadata index that is applied here."""
        for broker_id in successors:
            held = self._held.get(broker_id, ())
            if not any(now_us < one.until_us and index >= one.applied_index for one in held):
                return False
        return True

    def covered_until(self, successors: Collection[BrokerId], index: int) -> int:
        """Return the elapsed time until which `cover` is true and `to_ask` empty, if nothing is heard; 0: not now."""
        until_us = NEVER_US
        for broker_id in successors:
            held = self._held.get(broker_id, ())
            ends_us = [one.until_us for one in held if index >= one.applied_index]
            if not ends_us or broker_id in self._refused_us:
                return 0
            until_us = min(until_us, max(ends_us))
            if broker_id not in self._asked_us:
                until_us = min(until_us, held[0].until_us - _LEASE_US // 2)
        return until_us

    def to_ask(self, successors: Collection[BrokerId], now_us: int) -> list[BrokerId]:
        """Return the brokers to be asked now: half of their last promise is over, or they gave none."""
        renew_us = now_us + _LEASE_US // 2
        return [
            one
            for one in successors
            if ((held := self._held.get(one)) is None or held[0].until_us < renew_us)
            and one not in self._asked_us
            and not self.was_refused(one, now_us)
        ]

    def was_refused(self, broker_id: BrokerId, now_us: int) -> bool:
        """True if the broker refused a moment ago, so that asking again has to wait."""
        return now_us < self._refused_us.get(broker_id, -_LEASE_US) + _LEASE_US

    def asked(self, broker_id: BrokerId, now_us: int) -> None:
        """Note that the broker is asked now."""
        self._asked_us[broker_id] = now_us

    def promised(self, broker_id: BrokerId, asked_us: int, lease_us: int, index: int) -> None:
        """Take the promise of a broker that was asked at `asked_us`."""
        if self._asked_us.get(broker_id) == asked_us:
            del self._asked_us[broker_id]
            self._refused_us.pop(broker_id, None)
            lease_us = min(lease_us, _LEASE_US)
            held = _Held(asked_us + lease_us - lease_us // limits.LEASE_MARGIN, index)
            self._held[broker_id] = (held, *self._held.get(broker_id, ())[:1])

    def refused(self, broker_id: BrokerId, asked_us: int, now_us: int) -> None:
        """The broker that was asked at `asked_us` did not promise, or its answer was lost."""
        if self._asked_us.get(broker_id) == asked_us:
            del self._asked_us[broker_id]
            self._refused_us[broker_id] = now_us
