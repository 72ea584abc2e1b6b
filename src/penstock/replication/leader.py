"""Leader side of one partition: high watermark, ISR and the durability of acks.

Rules: one object is one leadership, of one leader epoch; followers' state begins anew with each. Facts come in as
events; each returns True if the high watermark (`committed_end`) moved, which never goes back. The image defines the
ISR; the leader only proposes changes. A proposal with unknown outcome counts as both accepted and refused until the
image has a later version of the partition. An event costs at most one pass over the replicas, and a leadership without
followers holds only its numbers. Observers (read replicas) fetch as followers do; their state is recorded for people
only.

A partition may have companion logs (`penstock.metadata.companions`), each with a leadership of its own that is tied to
the partition's, its target: same image, same ISR, same end. The target alone proposes: a follower joins if it may join
in all these logs, and leaves if it is late in one; the members of a proposal count for commits in all. A companion's
leadership may begin a moment later, once its log is open; until then no follower joins.

| durability       | counts of the leader         | counts of a follower | if                               |
|------------------|------------------------------|----------------------|----------------------------------|
| fsync            | `flushed_end`                | `flushed_end`        |                                  |
| auto             | `log_end`                    | `log_end`            | the ISR has several members      |
| auto             | `flushed_end`                |                      | the ISR may have one member only |
| os, or in memory | `log_end`                    | `log_end`            |                                  |
| any, log failed  | `flushed_end`                | as above             |                                  |

A follower: fetches → has all (from then on acks look at its disk, too) → has synced what was synced here then: may join

A leadership that is bound by promises to earlier leaders (`lease`) commits nothing, and proposes no new member, until
they are over.

A proposal: (none) → under way → accepted, or its answer lost → (settled by a later version of the image)
                               → refused → (none)
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple, Protocol

from penstock.base import limits
from penstock.base.companion_kinds import CompanionKind
from penstock.base.config import Durability
from penstock.base.ids import BrokerId, Incarnation, LeaderEpoch, PartitionKey
from penstock.messages import IsrChange, IsrMember
from penstock.replication import rules
from penstock.replication.leadership_timers import LeadershipTimers

_AWAITED_US = limits.JOIN_AWAITED_MS * 1_000
_NO_PROMISES: Mapping[BrokerId, int] = MappingProxyType({})

# ruff: noqa: SLF001 (the leaderships of a partition and of its companion logs see each other)


class FollowerProgress:
    """One follower of one leadership: its ends, and since when it has been behind. Times are elapsed microseconds.

    A follower has caught up with the log of some moment once it has reached the log end of that moment. Under load no
    follower ever has everything, least of all on its disk, so such a moment is marked (`_mark`), and the next one once
    that is reached: the recorded time is older than the truth by at most one such round, and never newer.

    A follower outside the ISR that keeps up would never meet the committed end under constant load while the leader
    alone commits: at each fetch there is more. So commits wait for it for a moment (`is_awaited`): then it has
    everything committed at its next fetch, and can join. That wait is short, and is not repeated soon, because the
    follower may fail meanwhile.
    """

    __slots__ = (
        "_awaited_us", "_kept_up_us", "_mark", "broker_id", "caught_up_us", "flushed_end", "incarnation", "is_awaited",
        "is_impeded", "joins_at", "log_end",
    )  # fmt: skip

    def __init__(self, broker_id: BrokerId, incarnation: Incarnation | None, now_us: int) -> None:
        self.broker_id = broker_id
        self._awaited_us: int | None = None  # when commits began to wait for it
        self.begin(incarnation, now_us)

    def begin(self, incarnation: Incarnation | None, now_us: int) -> None:
        """Reset for a new incarnation of its broker (None: not live): it has not fetched yet."""
        self.incarnation = incarnation
        self.log_end: int | None = None  # None: it has not fetched in this epoch
        self.flushed_end: int | None = None
        # it joins the ISR once this much is on its disk; None: it has not caught up yet
        self.joins_at: int | None = None
        self.caught_up_us = now_us  # when it last had everything
        self._kept_up_us: int | None = None  # as `caught_up_us`, but None until it has: an empty log begins far behind
        self._mark = (0, now_us)  # the leader's end at some later moment, and that time
        self.is_impeded = False  # its log accepts nothing, as it reported
        self.is_awaited = False  # commits wait for it, so that it can join

    def reached(self, end: int, leader_end: int, now_us: int) -> None:
        """Record that the follower reached `end` while the leader's log ends at `leader_end`."""
        if end >= leader_end:
            self.caught_up_us = self._kept_up_us = now_us
        elif end >= self._mark[0]:
            self.caught_up_us = max(self.caught_up_us, self._mark[1])
            if self._mark[0]:
                self._kept_up_us = self.caught_up_us
        else:
            return
        self._mark = leader_end, now_us

    def keeps_up(self, now_us: int) -> bool:
        """True if it had everything up to a moment ago."""
        return self._kept_up_us is not None and now_us - self._kept_up_us <= _AWAITED_US

    def await_join(self, now_us: int, pause_us: int) -> int | None:
        """Have commits wait for it, unless they did in the last `pause_us`; return the end of a new wait."""
        if self.is_awaited or (self._awaited_us is not None and now_us < self._awaited_us + pause_us):
            return None
        self.is_awaited, self._awaited_us = True, now_us
        return now_us + _AWAITED_US

    def end_await(self, now_us: int) -> bool:
        """End the wait of commits if it lasted long enough; return True if it ended now."""
        if not self.is_awaited or (self._awaited_us is not None and now_us < self._awaited_us + _AWAITED_US):
            return False
        self.is_awaited = False
        return True


class ObserverProgress:
    """Leader's state of one observer (read replica); no decision depends on it."""

    __slots__ = ("broker_id", "is_impeded", "log_end")

    def __init__(self, broker_id: BrokerId) -> None:
        self.broker_id = broker_id
        self.log_end: int | None = None  # None: it has not fetched in this epoch
        self.is_impeded = False

    def fetched(self, broker_id: BrokerId, log_end: int, *, is_impeded: bool) -> None:
        """Record a fetch from `log_end`, if it is this observer's."""
        if broker_id == self.broker_id:
            self.log_end, self.is_impeded = log_end, is_impeded


class Assignment(Protocol):
    """A partition's state in the metadata image."""

    @property
    def replicas(self) -> tuple[BrokerId, ...]:
        """The replicas, the preferred leader first."""

    @property
    def observers(self) -> tuple[BrokerId, ...]:
        """Brokers with a copy for readers only; they never delay a commit."""

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The in-sync replicas."""

    @property
    def eligible(self) -> tuple[BrokerId, ...]:
        """Replicas outside the ISR that may lead until commits resume."""

    @property
    def unsure(self) -> tuple[BrokerId, ...]:
        """Replicas that may have the longest log; considered if no other replica is known to be complete."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """The epoch of the current leadership."""

    @property
    def version(self) -> int:
        """Raised with every change."""


class LogEndsAtStart(NamedTuple):
    """The ends of a log when its leadership begins; `committed_end` is known from before."""

    log_start: int  # log start offset
    committed_end: int  # high watermark
    flushed_end: int  # end of what is synced to disk
    log_end: int  # log end offset


class CommitTerms(NamedTuple):
    """The stream's settings for commits."""

    durability: Durability
    min_isr: int
    lag_ms_max: int = limits.REPLICA_LAG_MS_MAX
    is_in_memory: bool = False  # no ack may say that its message is on a disk
    companions: tuple[CompanionKind, ...] = ()  # no follower joins before these logs are led, too


@lru_cache(limits.SHARED_ISRS_MAX)
def terms_of(
    durability: Durability, min_isr: int, *, is_in_memory: bool = False, companions: tuple[CompanionKind, ...] = ()
) -> CommitTerms:
    """Return the terms; streams with equal settings share one object. A sync adds nothing to memory: as with `os`."""
    durability = Durability.OS if is_in_memory else durability
    return CommitTerms(durability, min_isr, is_in_memory=is_in_memory, companions=companions)


class CommitStatus(NamedTuple):
    """Durability of a message: the number of in-sync replicas that have it, and if it is on all their disks."""

    replicas: int
    fsynced: bool


_WRITTEN, _ON_DISK = CommitStatus(1, fsynced=False), CommitStatus(1, fsynced=True)


class Leadership:
    """One partition that this broker leads, in one leader epoch. Times are elapsed microseconds."""

    __slots__ = (
        "_agenda", "_awaited_version", "_broker_id", "_followers", "_has_failed", "_incarnation", "_must_have",
        "_observers", "_promised", "_retry_us", "_rivals", "_smallest_isr", "_terms", "_under_way", "_unsettled",
        "committed_end", "companions", "epoch_start", "flushed_end", "image_index", "isr", "key", "kind",
        "leader_epoch", "log_end", "log_start", "replicas", "target", "version",
    )  # fmt: skip

    def __init__(
        self,
        key: PartitionKey,
        broker_id: BrokerId,
        assignment: Assignment,
        live: Mapping[BrokerId, Incarnation],
        ends: LogEndsAtStart,
        terms: CommitTerms,
        agenda: LeadershipTimers[Leadership],
        now_us: int,
        target: Leadership | None = None,
        *,
        kind: CompanionKind | None = None,
        promised: Mapping[BrokerId, int] = _NO_PROMISES,
    ) -> None:
        """`target` and `kind`: of a companion log, the leadership that it is tied to, and what it is to that one.

        `promised`: the brokers that may answer look-ups by a lease, and until when; see `GivenPromises.binding`.
        """
        self.key = key
        self.leader_epoch = assignment.leader_epoch
        self.log_start, self.committed_end, self.flushed_end, self.log_end = ends
        self.epoch_start = ends.log_end
        self.image_index = 0  # metadata that a follower needs to show rows; set by the caller
        self.version = -1
        self._broker_id = broker_id
        self._terms = terms
        self._agenda = agenda
        self._followers: tuple[FollowerProgress, ...] = ()
        self._observers: tuple[ObserverProgress, ...] = ()
        self._has_failed = False
        self._rivals: tuple[BrokerId, ...] = ()  # they may lead, until the image says that this leader commits without
        self._unsettled: dict[frozenset[BrokerId], bool] | None = None  # proposed members → True if the answer was lost
        self._under_way: IsrChange | None = None
        self._awaited_version = 0  # version with the accepted proposal, which the image will reach
        self._retry_us = 0
        self.companions: tuple[Leadership, ...] = ()
        self.target, self.kind = target, kind
        self._promised: dict[BrokerId, int] | None = dict(promised) if promised else None
        self.image(assignment, live, now_us)
        if target is not None:
            target.companions = (*target.companions, self)
            target._wish_if_needed(now_us)  # it may have waited for this alone
        self._plan_release()

    # State

    @property
    def accepts(self) -> bool:
        """True if messages are accepted now: they are committed without another replica having to join first."""
        return rules.may_commit(len(self.isr), self._terms.min_isr)

    @property
    def is_bound(self) -> bool:
        """True while nothing may be committed, because of promises to brokers that may not know of this leadership."""
        return (self if self.target is None else self.target)._promised is not None

    @property
    def successors(self) -> frozenset[BrokerId]:
        """The brokers that may lead next without losing acked messages, as far as this leader can know."""
        others = self._must_have - {self._broker_id}
        return others.union(self._rivals) if self._rivals else others

    @property
    def lacks_companion(self) -> bool:
        """True if one of the partition's companion logs is not led yet."""
        return len(self.companions) < len(self._terms.companions)

    @property
    def marks(self) -> Leadership | None:
        """The leadership of the partition's log of marks; None: it has none, or is not led yet."""
        return next((one for one in self.companions if one.kind is CompanionKind.MARKS), None)

    @property
    def lacks_marks(self) -> bool:
        """True if the partition's log of marks is not led yet."""
        return CompanionKind.MARKS in self._terms.companions and self.marks is None

    def tied(self) -> tuple[Leadership, ...]:
        """Return this leadership and those of its companion logs."""
        return (self, *self.companions)

    @property
    def min_isr(self) -> int:
        """The minimum number of in-sync replicas."""
        return self._terms.min_isr

    @property
    def waits_for_own_disk(self) -> bool:
        """True if commits wait for this broker's disk: then flush at once, else in the background.

        When this becomes True, also flush what is committed already: soon no other broker may have it.
        """
        must = self._has_failed or bool(self._rivals)
        return must or rules.waits_for_own_disk(self._terms.durability, self._smallest_isr)

    @property
    def knows_latest(self) -> bool:
        """True if `committed_end` is at least what any earlier leader reported."""
        return self.committed_end >= self.epoch_start

    @property
    def is_followed(self) -> bool:
        """True if all replicas that may lead next agree with this log in this epoch.

        These are the members of the current and of any proposed ISR. Until this leader is known to commit, others may
        lead, too.
        """
        return (
            not self._rivals
            and self.accepts
            and all(one.log_end is not None for one in self._followers if one.broker_id in self._must_have)
        )

    def commit_status(self, end: int) -> CommitStatus:
        """The durability that an ack may report for the messages below `end`."""
        count, fsynced = 1, self.flushed_end >= end and not self._terms.is_in_memory
        if not self._followers:
            return _ON_DISK if fsynced else _WRITTEN
        for follower in self._followers:
            if follower.broker_id not in self.isr:
                if follower.joins_at is not None and not rules.waits_for_all_disks(self._terms.durability):
                    # After a power loss on all brokers it may be the one elected.
                    fsynced = fsynced and (follower.flushed_end or 0) >= end
            elif follower.log_end is not None and follower.log_end >= end:
                count += 1
                fsynced = fsynced and (follower.flushed_end or 0) >= end
        return CommitStatus(count, fsynced)

    @property
    def holders(self) -> tuple[BrokerId, ...]:
        """This leader and the brokers whose fetches are answered."""
        return (*self.replicas, *(one.broker_id for one in self._observers)) if self._observers else self.replicas

    def lag(self) -> dict[BrokerId, int | None]:
        """Offsets that each follower or observer is behind; None if it has not fetched in this epoch."""
        ends = {one.broker_id: one.log_end for one in self._fetching()}
        return {one: None if end is None else max(0, self.log_end - end) for one, end in ends.items()}

    def _fetching(self) -> tuple[FollowerProgress | ObserverProgress, ...]:
        return *self._followers, *self._observers

    @property
    def impeded_followers(self) -> frozenset[BrokerId]:
        """Followers and observers whose logs accept nothing."""
        return frozenset(one.broker_id for one in self._fetching() if one.is_impeded)

    # Events of this broker's log

    def appended(self, log_end: int, now_us: int) -> bool:
        """The log has grown."""
        for follower in self._followers:
            if self._reached(follower) == self.log_end:
                follower.caught_up_us = now_us  # until now it had everything
        self.log_end = log_end
        if self._followers:
            self._agenda.plan(self, now_us + self._terms.lag_ms_max * 1_000)
        return self._advance_high_watermark()

    def flushed(self, flushed_end: int) -> bool:
        """More of the log is on the disk."""
        self.flushed_end = flushed_end
        if self._rivals:
            self._wish()
        return self._advance_high_watermark()

    def failed(self) -> bool:
        """The log failed: of what is written only what is on the disk remains."""
        self._has_failed = True
        return self._advance_high_watermark()

    def log_start_raised(self, log_start: int) -> None:
        """The log start is higher, by retention or on request; followers learn of it with their next news."""
        assert self.log_start <= log_start <= self.committed_end, (self.key, log_start, self.committed_end)
        self.log_start = log_start

    def reconfigured(self, terms: CommitTerms) -> bool:
        self._terms = terms
        if self._rivals:
            self._wish()
        return self._advance_high_watermark()

    # Events of followers

    def fetched(
        self,
        broker_id: BrokerId,
        incarnation: Incarnation,
        log_end: int,
        flushed_end: int,
        now: int,
        *,
        is_impeded: bool = False,
    ) -> bool:
        """A follower fetches, at `now`, from `log_end`, up to which its log agrees with this one.

        `incarnation` is the image's for its broker. `is_impeded`: see `impeded`.
        """
        follower = self._follower(broker_id)
        if follower is None:
            for observer in self._observers:
                observer.fetched(broker_id, log_end, is_impeded=is_impeded)
            return False
        if follower.incarnation != incarnation:  # registered anew: earlier statements are void
            follower.begin(incarnation, now)
        follower.is_impeded = is_impeded
        follower.log_end, follower.flushed_end = log_end, min(flushed_end, log_end)
        released = self._promised is not None and self._knows_this(broker_id)
        return self._progressed(follower, now) or released

    def progressed(self, broker_id: BrokerId, incarnation: Incarnation, flushed_end: int, now_us: int) -> bool:
        """A follower has synced more of what it is known to have."""
        follower = self._follower(broker_id)
        if follower is None or follower.incarnation != incarnation or follower.log_end is None:
            return False
        follower.flushed_end = min(flushed_end, follower.log_end)
        return self._progressed(follower, now_us)

    def impeded(self, broker_id: BrokerId, incarnation: Incarnation) -> None:
        """A follower's log accepts nothing, until it fetches without saying so; no commit waits for it meanwhile."""
        follower = self._follower(broker_id)
        if follower is not None and follower.incarnation == incarnation and not follower.is_impeded:
            follower.is_impeded = True
            if broker_id in self.isr:
                self._wish()

    def _progressed(self, follower: FollowerProgress, now_us: int) -> bool:
        reached = self._reached(follower)
        assert reached is not None
        follower.reached(reached, self.log_end, now_us)
        if follower.broker_id in self.isr or follower.is_impeded:
            follower.is_awaited = False
        elif follower.incarnation is not None and follower.keeps_up(now_us) and not self._has_all(follower):
            until_us = follower.await_join(now_us, self._terms.lag_ms_max * 1_000)
            if until_us is not None:
                self._agenda.plan(self, until_us)
        advanced = self._advance_high_watermark()
        self._note_joining(follower)
        if self._should_move(follower, now_us):
            self._wish()
        if self._is_behind(follower):
            self._agenda.plan(self, now_us + self._terms.lag_ms_max * 1_000)
        return advanced

    def _note_joining(self, follower: FollowerProgress) -> None:
        if follower.broker_id in self.isr:
            follower.joins_at = None
        elif follower.joins_at is None and self._has_all(follower):
            follower.joins_at = self.flushed_end

    def _follower(self, broker_id: BrokerId) -> FollowerProgress | None:
        for follower in self._followers:
            if follower.broker_id == broker_id:
                return follower
        return None

    def _reached(self, follower: FollowerProgress) -> int | None:
        return follower.flushed_end if rules.waits_for_all_disks(self._terms.durability) else follower.log_end

    # Events of the metadata

    def image(self, assignment: Assignment, live: Mapping[BrokerId, Incarnation], now_us: int) -> bool:
        """Take in the image; `live` maps every broker that is registered and not fenced to its incarnation.

        Return True if the high watermark moved, of this log or a companion's.
        """
        assert assignment.leader_epoch == self.leader_epoch, (self.key, assignment.leader_epoch)
        assert self._broker_id in assignment.isr, (self.key, assignment.isr)
        self._incarnation = live.get(self._broker_id)
        self.replicas = assignment.replicas
        known = {follower.broker_id: follower for follower in self._followers}
        self._followers = tuple(
            known.get(broker_id) or FollowerProgress(broker_id, live.get(broker_id), now_us)
            for broker_id in assignment.replicas
            if broker_id != self._broker_id
        )
        self.isr = assignment.isr
        for follower in self._followers:
            if (incarnation := live.get(follower.broker_id)) != follower.incarnation:
                follower.begin(incarnation, now_us)
            self._note_joining(follower)  # a follower that has all when it leaves may send nothing more
        observed = {one.broker_id: one for one in self._observers}
        self._observers = tuple(observed.get(one) or ObserverProgress(one) for one in assignment.observers)
        self._rivals = (*assignment.eligible, *assignment.unsure)
        if assignment.version > self.version:  # every earlier proposal is now in force or can no longer be
            self.version = assignment.version
            self._under_way = self._unsettled = None
        self._note_must_have()
        if self._followers:
            self._agenda.plan(self, now_us + self._terms.lag_ms_max * 1_000)
            self._wish_if_needed(now_us)
        advanced = self._advance_high_watermark()
        for companion in self.companions:
            advanced |= companion.image(assignment, live, now_us)
        return advanced

    def tick(self, now_us: int) -> bool:
        """Handle a planned deadline: find late followers. Return True as `image`."""
        released = self._promised is not None and self._expire_promises(now_us)
        waited = [follower for follower in self._followers if follower.end_await(now_us)]
        for follower in self._followers:
            if self._is_late_here(follower, now_us):
                follower.joins_at = None  # it has to reach the end again
        self._wish_if_needed(now_us)
        behind = [one.caught_up_us for one in self._followers if one.broker_id in self.isr and self._is_behind(one)]
        if behind:
            due_us = min(behind) + self._terms.lag_ms_max * 1_000 + 1
            # A follower that is already late waits for the outcome of a proposal.
            self._agenda.plan(self, due_us if due_us > now_us else now_us + limits.ISR_RETRY_MS * 1_000)
        return (bool(waited) and self._advance_high_watermark()) or released

    # Promises to earlier leaders

    def _knows_this(self, broker_id: BrokerId) -> bool:
        """A broker fetches in this epoch, so it leads in no earlier one. Return True as `image`."""
        assert self._promised is not None
        return self._promised.pop(broker_id, None) is not None and self._release()

    def _expire_promises(self, now_us: int) -> bool:
        assert self._promised is not None
        self._promised = {one: until_us for one, until_us in self._promised.items() if until_us > now_us}
        return self._release()

    def _release(self) -> bool:
        """Go on unless promises are left. Return True as `image`."""
        if self._promised:
            self._plan_release()
            return False
        self._promised = None
        self._wish()
        advanced = self._advance_high_watermark()
        for companion in self.companions:
            advanced |= companion._advance_high_watermark()
        return advanced

    def _plan_release(self) -> None:
        if self._promised:
            self._agenda.plan(self, min(self._promised.values()))

    # Proposals

    def proposal(self, now_us: int) -> IsrChange | None:
        """Return the ISR to propose, or None. It counts as possible until `accepted`, `refused` or a later image."""
        if self._under_way is not None or self._awaited_version > self.version or self._incarnation is None:
            return None
        wanted = self._wanted(now_us)
        members = frozenset(member.broker_id for member in wanted)
        if members == frozenset(self.isr) and not (self._unsettled or self._may_resume):
            return None
        if now_us < self._retry_us:
            self._agenda.plan(self, self._retry_us)
            return None
        # Before the leader commits without its rivals nothing is committed: others may join all the same, and lead
        # instead.
        is_ready = not self._rivals or self._has_all_on_disk
        resumes = is_ready and rules.may_commit(len(wanted), self._terms.min_isr)
        change = IsrChange(*self.key, self.leader_epoch, self.version, wanted, resumes)
        self._under_way = change
        if self._unsettled is None:
            self._unsettled = {}
        self._unsettled.setdefault(members, False)
        self._note_must_have()
        return change

    def accepted(self, change: IsrChange, version: int) -> None:
        """The metadata leader accepted it; a later image will have it."""
        if change is self._under_way:
            self._under_way = None
            self._awaited_version = version

    def refused(self, change: IsrChange, now_us: int) -> bool:
        """The metadata leader refused it: it cannot come into force, unless an earlier equal one still can.

        Return True as `image`.
        """
        if change is not self._under_way or self._unsettled is None:
            return False
        members = frozenset(member.broker_id for member in change.isr)
        if not self._unsettled[members]:
            del self._unsettled[members]
        self._end_proposal(now_us)
        advanced = self._advance_high_watermark()
        for companion in self.companions:
            advanced |= companion._advance_high_watermark()
        return advanced

    def lost(self, change: IsrChange, now_us: int, retry_ms: int = limits.ISR_RETRY_MS) -> None:
        """The answer did not come in time: the proposal may be in force, or may still come into force."""
        if change is self._under_way and self._unsettled is not None:
            self._unsettled[frozenset(member.broker_id for member in change.isr)] = True
            self._end_proposal(now_us, retry_ms)

    def end(self) -> None:
        """End this leadership: it proposes nothing more, and outcomes of its proposals are ignored."""
        self._under_way = None
        self._agenda.drop(self)
        if self.target is not None:
            self.target.companions = tuple(one for one in self.target.companions if one is not self)

    def _end_proposal(self, now_us: int, retry_ms: int = limits.ISR_RETRY_MS) -> None:
        self._under_way = None
        self._retry_us = now_us + retry_ms * 1_000
        self._note_must_have()
        self._agenda.plan(self, self._retry_us)

    def _wanted(self, now_us: int) -> tuple[IsrMember, ...]:
        assert self._incarnation is not None
        members = {self._broker_id: self._incarnation}
        for follower in self._followers:
            if follower.incarnation is None:
                continue
            is_member = follower.broker_id in self.isr
            if (not self._is_late(follower, now_us)) if is_member else self._may_join(follower, now_us):
                members[follower.broker_id] = follower.incarnation
        return tuple(IsrMember(broker_id, members[broker_id]) for broker_id in self.replicas if broker_id in members)

    def _wish(self) -> None:
        self._agenda.wish(self if self.target is None else self.target)

    def _wish_if_needed(self, now_us: int) -> None:
        if self.target is not None:
            self.target._wish_if_needed(now_us)
            return
        is_needed = self._unsettled or self._may_resume
        if is_needed or any(self._should_move(follower, now_us) for follower in self._followers):
            self._agenda.wish(self)

    @property
    def _may_resume(self) -> bool:
        """True if the leader may report that it commits without its rivals: its own disk now has everything."""
        return bool(self._rivals) and self.accepts and self._has_all_on_disk

    @property
    def _has_all_on_disk(self) -> bool:
        """True if this broker's disk has everything of all these logs, and goes on taking more."""
        if self.lacks_companion or self._has_failed or not self._has_synced:
            return False
        return all(one._has_all_on_disk for one in self.companions)

    @property
    def _has_synced(self) -> bool:
        """True if everything from before this leadership and everything committed since is on this broker's disk."""
        return self.flushed_end >= max(self.committed_end, self.epoch_start)

    def _should_move(self, follower: FollowerProgress, now_us: int) -> bool:
        if follower.broker_id in self.isr:
            return follower.incarnation is None or self._is_late(follower, now_us)
        return self._may_join(follower, now_us)

    def _may_join(self, follower: FollowerProgress, now_us: int) -> bool:
        return (
            follower.incarnation is not None
            and self._has_all(follower)  # with fsync that is on its disk already
            and rules.is_as_durable(follower.flushed_end, follower.joins_at)
            and not self._is_late(follower, now_us)
            and not self.lacks_companion
            and not self.is_bound  # a new member could lead next, and would not be bound
            and all(one._lets_join(follower.broker_id, now_us) for one in self.companions)
        )

    def _lets_join(self, broker_id: BrokerId, now_us: int) -> bool:
        follower = self._follower(broker_id)
        return follower is not None and self._may_join(follower, now_us)

    def _has_all(self, follower: FollowerProgress) -> bool:
        return rules.may_join(self._reached(follower), self.committed_end, self.epoch_start)

    def _is_behind(self, follower: FollowerProgress) -> bool:
        reached = self._reached(follower)
        return reached is None or reached < self.log_end

    def _is_late(self, follower: FollowerProgress, now_us: int) -> bool:
        if self._is_late_here(follower, now_us):
            return True
        return any(one._finds_late(follower.broker_id, now_us) for one in self.companions)

    def _is_late_here(self, follower: FollowerProgress, now_us: int) -> bool:
        if follower.is_impeded:
            return True
        return self._is_behind(follower) and now_us - follower.caught_up_us > self._terms.lag_ms_max * 1_000

    def _finds_late(self, broker_id: BrokerId, now_us: int) -> bool:
        follower = self._follower(broker_id)
        return follower is not None and self._is_late(follower, now_us)

    # Commits

    def _note_must_have(self) -> None:
        proposed = (self if self.target is None else self.target)._unsettled or ()
        self._must_have = rules.must_have(self.isr, proposed)
        self._smallest_isr = min(len(self.isr), *map(len, proposed)) if proposed else len(self.isr)
        for companion in self.companions:
            companion._note_must_have()

    def _advance_high_watermark(self) -> bool:
        """Advance `committed_end` as far as the rules allow; return True if it did."""
        if self._rivals or not self.accepts or self.is_bound:
            return False
        end = self.flushed_end if self.waits_for_own_disk else self.log_end
        for follower in self._followers:
            if follower.broker_id in self._must_have or follower.is_awaited:
                reached = self._reached(follower)
                if reached is None:
                    return False
                end = min(end, reached)
        if end <= self.committed_end:
            return False
        self.committed_end = end
        return True
