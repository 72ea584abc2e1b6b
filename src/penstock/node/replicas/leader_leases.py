"""Leader leases of this broker: look-ups go on once no other broker can have acked what this one lacks (ADR 92).

Rules: a look-up of a partition that only this broker can lead goes on at once. So does one under a lease, of which half
is left on average: look-ups renew it. Another one waits for promises, LEASE_WAIT_MS at most. Where they do not come in
time, or cannot come because a broker that may lead next is away, it waits for a heartbeat sent after it, as refusals do
(`deferred_refusals`): that costs a round to the metadata leader. What is not confirmed by then is answered with
not_yet. Below feature level 0.4 brokers promise nothing, and look-ups go on at once.

    look-up ──lease holds──────────────────────────────────────────▶ goes on
            ──brokers are asked──▶ waits ──all have promised───────▶ goes on
                                     └──too late──▶ ┐
            ──one of them is away───────────────────▶ heartbeat ──answered──▶ goes on
                                                          └──not in time──▶ not_yet
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable
from typing import NamedTuple

from penstock.access.handshake import sharer_of
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.fair_shares import FairShares
from penstock.base.ids import BrokerId, Incarnation
from penstock.messages import LeaseRequest, LeaseResponse, Response
from penstock.metadata import feature_versions
from penstock.metadata.feature_levels import LEADER_LEASE
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.deferred_refusals import DeferredRefusals
from penstock.node.partition.partition import Partition
from penstock.node.quorum.peer_client import PeerClient
from penstock.node.security.access import Call
from penstock.replication.leader import Leadership
from penstock.replication.lease import NEVER_US, GivenPromises, HeldPromises

_LEASE_US = limits.LEADER_LEASE_MS * 1_000
_WAIT_US = limits.LEASE_WAIT_MS * 1_000

Confirmed = Callable[[RemoteError | None], None]
"""Gets None once the look-up may go on, or the error."""


class _Lookup(NamedTuple):
    """A look-up that is not confirmed yet."""

    caller: Hashable
    user: str  # the user whose share it takes
    partition: Partition
    leadership: Leadership  # when it came
    until_us: int  # it waits so long for a lease
    done: Confirmed


class _Round:
    """Look-ups of one leadership that wait for the same heartbeat (`DeferredRefusal`)."""

    def __init__(self, leases: LeaderLeases, partition: Partition, lookups: list[_Lookup]) -> None:
        self._leases, self._partition, self._lookups = leases, partition, lookups
        self._leadership = lookups[0].leadership

    def is_led(self) -> bool:
        """True if the leadership goes on."""
        return self._partition.leadership is self._leadership

    def is_over(self) -> bool:
        """True if the leadership has ended."""
        return not self.is_led()

    def settle(self, *, is_certain: bool) -> None:
        """Have the look-ups go on, or refuse them."""
        text = f"it is not certain that this broker still leads {self._partition.label}; ask again in a moment"
        error = None if is_certain else RemoteError(ErrorCode.NOT_YET, text)
        for lookup in self._lookups:
            self._leases.settled(lookup, error)


class LeaderLeases:
    """The promises that this broker has given and holds, and the look-ups that wait."""

    def __init__(self, context: Context, cluster: Cluster, peers: PeerClient, refusals: DeferredRefusals) -> None:
        self._context, self._outbox = context, context.outbox
        self._cluster, self._peers, self._refusals = cluster, peers, refusals
        self._broker_id = context.settings.broker_id
        self._given = GivenPromises(0)
        self._held = HeldPromises()
        self._incarnation: Incarnation | None = None
        self._open: dict[Hashable, _Lookup] = {}  # all that wait
        self._waiting: dict[Hashable, _Lookup] = {}  # those that wait for a lease, oldest first
        self._shares = FairShares()  # shares of the open ones
        self._is_due = False  # a lease may hold that did not
        self._index = 0  # metadata index at the last `settle`: a promise counts once its own has arrived

    def started(self, now: Now) -> None:
        """Take the time at which this process started."""
        self._given = GivenPromises(now.elapsed_us)

    def registered(self, incarnation: Incarnation | None) -> None:
        """Ask under this incarnation from now on; None: not registered."""
        if incarnation != self._incarnation:
            self._incarnation = incarnation
            self._held.clear()

    # Promises to others

    def promise(self, call: Call, request: LeaseRequest) -> None:
        """Answer another broker with a promise.

        Raise RemoteError (unknown_epoch, stale_incarnation; unsupported_version where a leadership would not be bound).
        """
        if (error := feature_versions.missing(self._context.image, LEADER_LEASE)) is not None:
            raise error
        known = self._context.image.brokers.get(request.broker_id)
        if known is None or known.incarnation < request.incarnation:
            text = f"incarnation {request.incarnation} of broker {request.broker_id} is not known here yet"
            raise RemoteError(ErrorCode.UNKNOWN_EPOCH, text)
        if known.incarnation > request.incarnation:
            text = f"incarnation {request.incarnation} of broker {request.broker_id} is over; register again"
            raise RemoteError(ErrorCode.STALE_INCARNATION, text)
        self._given.give(request.broker_id, call.now.elapsed_us)
        self._outbox.reply(call.caller, LeaseResponse(lease_us=_LEASE_US, index=self._context.image.index))

    def binding(self, replicas: Iterable[BrokerId]) -> dict[BrokerId, int]:
        """Return the promises that bind a leadership that begins now; see `GivenPromises.binding`."""
        others = [one for one in replicas if one != self._broker_id]
        if not self._context.image.has_feature(LEADER_LEASE):
            return {}
        return self._given.binding(others, self._context.image.brokers, self._context.now.elapsed_us)

    # Look-ups

    def confirm(self, call: Call, partition: Partition, done: Confirmed) -> None:
        """Call `done` once no other broker can have acked, before now, what this leader lacks.

        At once on a replica that does not lead, or is mute: `Partition.require_high_watermark` refuses there. Raise
        RemoteError (overloaded).
        """
        leadership = partition.leadership
        if leadership is None or partition.is_mute or self.is_certain(partition):
            done(None)
            return
        successors, now_us = leadership.successors, self._context.now.elapsed_us
        can_come = self._can_come(successors, now_us)
        user = sharer_of(call.auth.who)
        if not self._shares.fits(user, 1, limits.UNCONFIRMED_LOOKUPS_MAX):
            raise RemoteError(ErrorCode.OVERLOADED, "too many look-ups wait for the leader to be confirmed; ask again")
        self._shares.add(user)
        lookup = _Lookup(call.caller, user, partition, leadership, now_us + _WAIT_US if can_come else now_us, done)
        self._open[call.caller] = self._waiting[call.caller] = lookup
        self._is_due = self._is_due or not can_come

    def is_certain(self, partition: Partition) -> bool:
        """True if no other broker can have acked, before now, what this leader lacks; ask for new promises if due."""
        leadership = partition.leadership
        if leadership is None or partition.is_mute:
            return False
        if not partition.is_replicated or not self._context.image.has_feature(LEADER_LEASE):
            return True
        successors, now_us = leadership.successors, self._context.now.elapsed_us
        if self._can_come(successors, now_us):
            self._ask(successors, now_us)
        return self._holds(successors, now_us)

    def certain_until(self, partition: Partition) -> int:
        """Return the elapsed time until which `is_certain` is true and asks for nothing, if nothing is heard."""
        leadership = partition.leadership
        if leadership is None or partition.is_mute:
            return 0
        if not partition.is_replicated or not self._context.image.has_feature(LEADER_LEASE):
            return NEVER_US
        if self._cluster.registration.is_leaving:
            return 0
        return self._held.covered_until(leadership.successors, self._context.image.index)

    def _holds(self, successors: Collection[BrokerId], now_us: int) -> bool:
        """True if this broker has the lease of a partition that these may lead next."""
        if self._cluster.registration.is_leaving:  # promises end when the others learn of it
            return False
        return self._held.cover(successors, self._context.image.index, now_us)

    def _can_come(self, successors: Iterable[BrokerId], now_us: int) -> bool:
        """True if all of them may promise now."""
        if self._incarnation is None or self._cluster.registration.is_leaving:
            return False
        return all(self._peers.is_up(one) and not self._held.was_refused(one, now_us) for one in successors)

    def _ask(self, successors: Collection[BrokerId], now_us: int) -> None:
        for broker_id in self._held.to_ask(successors, now_us):
            assert self._incarnation is not None
            self._held.asked(broker_id, now_us)
            request = LeaseRequest(broker_id=self._broker_id, incarnation=self._incarnation)
            self._peers.send(broker_id, request, done=self._answered(broker_id, self._incarnation, now_us))

    def _answered(
        self, broker_id: BrokerId, incarnation: Incarnation, asked_us: int
    ) -> Callable[[Response | RemoteError, bytes | memoryview], None]:
        def done(response: Response | RemoteError, raw: bytes | memoryview) -> None:
            if incarnation != self._incarnation:
                return
            if isinstance(response, LeaseResponse):
                self._held.promised(broker_id, asked_us, response.lease_us, response.index)
            else:
                self._held.refused(broker_id, asked_us, self._context.now.elapsed_us)
            self._is_due = True

        return done

    def settle(self) -> None:
        """Have look-ups go on whose lease holds by now, and the late ones wait for a heartbeat."""
        if not self._waiting:
            return
        now_us, index = self._context.now.elapsed_us, self._context.image.index
        is_due = self._is_due or index != self._index
        if not is_due and now_us < next(iter(self._waiting.values())).until_us:
            return
        self._is_due, self._index = False, index
        late: dict[tuple[Leadership, str], list[_Lookup]] = {}
        held: dict[Leadership, bool] = {}
        for lookup in list(self._waiting.values()):
            leadership = lookup.leadership
            if leadership not in held:
                held[leadership] = self._holds(leadership.successors, now_us)
            if held[leadership]:
                self.settled(lookup, None)
            elif now_us >= lookup.until_us or not self._can_come(leadership.successors, now_us):
                del self._waiting[lookup.caller]
                late.setdefault((leadership, lookup.user), []).append(lookup)
        for (_, user), lookups in late.items():
            self._refusals.doubt(_Round(self, lookups[0].partition, lookups), user, self._context.now)

    def settled(self, lookup: _Lookup, error: RemoteError | None) -> None:
        """Have a look-up go on, or fail, unless it is over."""
        if self._open.get(lookup.caller) is lookup:
            self._forget(lookup.caller)
            lookup.done(error)

    def _forget(self, caller: Hashable) -> None:
        self._waiting.pop(caller, None)
        if (lookup := self._open.pop(caller, None)) is not None:
            self._shares.remove(lookup.user)

    def callers_disconnected(self, callers: Iterable[Hashable]) -> None:
        """Forget the look-ups of disconnected callers."""
        for caller in callers:
            self._forget(caller)

    def ended(self, partition: Partition, error: RemoteError) -> None:
        """Fail the look-ups of a partition that is no longer led here, or gone."""
        self._fail([one for one in self._open.values() if one.partition is partition], error)

    def stop(self, error: RemoteError) -> None:
        """Fail all look-ups because the broker stops."""
        self._fail(list(self._open.values()), error)

    def _fail(self, lookups: Iterable[_Lookup], error: RemoteError) -> None:
        for lookup in lookups:
            self.settled(lookup, error)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `settle` must run."""
        return next(iter(self._waiting.values())).until_us if self._waiting else None
