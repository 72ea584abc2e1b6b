"""Leader election of one partition: pure functions of the partition's state.

Rules:
- The leader is chosen among the live members of the ISR, in the order of the replicas; brokers that the metadata leader
  has not heard of lately (`silent`), which may be dead, come last.
- If none is live, an eligible replica leads (KIP-966's ELR): it left the ISR when nothing could be acked without it any
  more, so it has every acked message.
- Such a replica that returns from an unclean stop is unsure: it may have lost messages. It does not lead before a sure
  one, nor while a replica is away that may be sure.
- Once all of them are live, and unsure, the partition is in recovery (`recovers`): every live replica reports its log
  end, and the longest log of theirs leads, or another one that continues from that end (`recovered`). If only one
  replica is live, it leads.
- A replica that returns with another disk has nothing any more. The ISR never becomes empty: its last member stays in
  it, even without its disk, for which the partition waits if no other replica had every acked message.
- Only if the stream allows unclean election does another replica lead then; acked messages may be lost, and the outcome
  says so.
- Every start of a leadership has its own leader epoch.

    leaves the ISR                becomes eligible if      and stops being so when
    -------------------------     --------------------     -------------------------------------------------
    fenced, stopped, moved        always                   the leader reports that it commits
    behind, the leader says       |isr| < min_isr, or      it returns from an unclean stop: then it is unsure
                                  others are eligible      it returns with another disk
                                  or unsure already        or it held the stream in memory only

    had every acked message        becomes unsure when it        and stops being so when
    --------------------------     -------------------------     -------------------------------------------------
    eligible, or last in the ISR   returns from an unclean       as above; or it is in sync again, or leads; or its
                                   stop with its own disk        log is as long as the longest, which leads: then
    leader                         resigns: its log may          it is eligible
                                   have failed

Why the first row: an elected broker may have been dead for up to a session time-out, and may return without its tail.
The replica that was removed for it has every acked message, until the new leader is live and commits without that
replica.

Theory: an unclean stop loses only a tail, so a replica that had every acked message still has a prefix of such a log.
The longer of two such logs contains the shorter one, in any comparison order. That does not hold for all logs: one that
was out of sync may end in the tail of a later leader epoch that was never acked, where the acked messages are of an
earlier one (Raft's figure 8). Such a log leads only if the longest of the logs that count is a prefix of it, which is
known where both end in the same leader epoch. The idea is KIP-966's ("unclean recovery"). Of a stream with marks it
never leads so: every replica that counts has the committed marks on its disk, others may not. Of one with consumers it
leads so only if none that counts can lead: those have what the consumers were told, as far as that was promised.

The functions below leave `version` as it is: a command raises it once for all its effects (`after`).
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import NamedTuple

from msgspec.structs import replace

from penstock.base.config import Storage
from penstock.base.ids import BrokerId, LeaderEpoch, Offset
from penstock.metadata.commands import ReplicaEnd
from penstock.metadata.image import PartitionState, StreamState

_NOBODY: Set[BrokerId] = frozenset()


class ElectionRules(NamedTuple):
    """A stream's settings for the leadership of its partitions."""

    min_isr: int
    allow_unclean_election: bool
    is_in_memory: bool = False  # replicas are empty after any restart, also a clean one
    has_marks: bool = False
    has_consumers: bool = False

    @classmethod
    def of(cls, state: StreamState) -> ElectionRules:
        """The rules of a stream, whose `min_isr` is always set once it is created."""
        config = state.config
        assert config.min_isr is not None
        in_memory = config.storage is Storage.MEMORY
        return cls(config.min_isr, config.allow_unclean_election, in_memory, state.has_marks, state.has_consumers)


class Elected(NamedTuple):
    """A partition's state; `is_unclean` if its new leader may lack acked messages."""

    partition: PartitionState
    is_unclean: bool = False


class BrokerReturn(NamedTuple):
    """The circumstances of a broker's return."""

    broker_id: BrokerId
    clean_stop: bool
    data_dir_id: str
    last_data_dir_id: str  # of its previous registration


def after(before: PartitionState, changed: PartitionState) -> PartitionState:
    """Return `changed` with a raised version, or `before` if nothing changed."""
    return before if changed == before else replace(changed, version=before.version + 1)


def gone(
    partition: PartitionState,
    broker_id: BrokerId,
    live: Set[BrokerId],
    rules: ElectionRules,
    *,
    silent: Set[BrokerId] = _NOBODY,
) -> Elected:
    """A broker has stopped or was fenced. `live`: the remaining brokers."""
    if broker_id not in partition.replicas:
        return Elected(partition)
    return _elected(_left(partition, broker_id), live, rules, silent=silent)


def returned(partition: PartitionState, broker: BrokerReturn, live: Set[BrokerId], rules: ElectionRules) -> Elected:
    """A broker has registered, perhaps without having been fenced before. `live`: all live brokers, including it."""
    broker_id = broker.broker_id
    if broker_id not in partition.replicas:
        return Elected(partition)
    partition = _left(partition, broker_id)
    is_last = partition.isr == (broker_id,)
    awaited = partition.awaited_data_dir_id
    own = awaited if is_last and awaited is not None else broker.last_data_dir_id
    has_disk = broker.data_dir_id == own
    is_clean = broker.clean_stop and broker.data_dir_id == broker.last_data_dir_id
    eligible, unsure = partition.eligible, partition.unsure
    had_all = is_last or broker_id in eligible or broker_id in unsure
    if not (has_disk and is_clean) or rules.is_in_memory:
        eligible = _without(eligible, broker_id)
    if not has_disk:
        unsure = _without(unsure, broker_id)
    elif had_all and not (is_clean or rules.is_in_memory):
        unsure = tuple(sorted({*unsure, broker_id}))
    if is_last:
        awaited = None if has_disk else own
    known = (partition.eligible, partition.unsure, partition.awaited_data_dir_id)
    if (eligible, unsure, awaited) != known:
        partition = replace(partition, eligible=eligible, unsure=unsure, awaited_data_dir_id=awaited)
    return _elected(partition, live, rules, emptied=broker_id if rules.is_in_memory else None)


def altered(partition: PartitionState, live: Set[BrokerId], rules: ElectionRules) -> Elected:
    """The stream's rules have changed."""
    return _elected(partition, live, rules)


def holders(partition: PartitionState) -> frozenset[BrokerId]:
    """Replicas that had every acked message, on disks not known to be lost; some may have lost messages."""
    isr = partition.isr if partition.awaited_data_dir_id is None else ()
    return frozenset((*isr, *partition.eligible, *partition.unsure))


def recovers(partition: PartitionState, live: Set[BrokerId]) -> bool:
    """True if the longest log is to lead: all replicas that had every acked message are live, and all are unsure."""
    return partition.leader is None and bool(partition.unsure) and holders(partition) <= live


def recovered(
    partition: PartitionState,
    ends: Mapping[BrokerId, ReplicaEnd],
    live: Set[BrokerId],
    rules: ElectionRules,
    *,
    silent: Set[BrokerId] = _NOBODY,
) -> Elected | None:
    """Elect the longest of the reported logs; None if no replica may lead.

    The replicas that count are those that had every acked message. Another replica leads only if its log continues from
    theirs. Replicas with an equally long log become eligible. A failed log cannot lead; if the log of a replica that
    counts may be longer than all that can lead, or was not reported, another leads only if the stream allows unclean
    election.
    """
    if not recovers(partition, live):
        return None
    having = holders(partition)
    may_lead = tuple(one for one in partition.replicas if one in live and one in ends and not ends[one].has_failed)
    known = [end for one in having if (end := ends.get(one)) is not None and not end.is_unknown]
    # The ends are those of messages: a replica that was out of sync may lack rows of companion logs all the same.
    have_all = tuple(one for one in may_lead if one in having)
    whole: tuple[BrokerId, ...] = ()
    if len(known) == len(having):
        longest_known = max(known, key=_length)
        if rules.has_marks or rules.has_consumers:
            whole = _going_on(have_all, ends, longest_known)
        if not (whole or rules.has_marks):
            whole = _going_on(may_lead, ends, longest_known)
    is_unclean = not whole
    if is_unclean and not (may_lead and rules.allow_unclean_election):
        return None
    among = whole or have_all or may_lead
    longest = max(ends[one].length for one in among)
    equals = tuple(one for one in among if ends[one].length == longest)
    # Replicas that had everything have it on disk, as far as promised; others may have it in memory only.
    chosen = _first(tuple(one for one in equals if one in having) or equals, live, silent)
    assert chosen is not None
    if is_unclean:
        return Elected(_led_by(partition, chosen, (chosen,), (), ()), is_unclean)
    # Replicas with less still count: the longest log may be in memory only, and be lost before its leader commits.
    unsure = tuple(one for one in having if one not in equals)
    return Elected(_led_by(partition, chosen, (chosen,), equals, unsure))


def _going_on(
    brokers: tuple[BrokerId, ...], ends: Mapping[BrokerId, ReplicaEnd], beginning: ReplicaEnd
) -> tuple[BrokerId, ...]:
    """The brokers whose log is known to begin with `beginning`'s."""
    if not beginning.last_epoch and not beginning.log_end:
        return brokers
    return tuple(
        one
        for one in brokers
        if ends[one].last_epoch == beginning.last_epoch and ends[one].log_end >= beginning.log_end
    )


def _length(end: ReplicaEnd) -> tuple[LeaderEpoch, Offset]:
    return end.length


def leader_changed(
    partition: PartitionState,
    live: Set[BrokerId],
    rules: ElectionRules,
    *,
    resigned: bool,
    silent: Set[BrokerId] = _NOBODY,
) -> PartitionState | None:
    """Move the leadership from a live leader that cannot serve; None if no other replica may lead.

    The old leader leaves the ISR in any case: otherwise brokers that cannot reach each other would take the lead from
    each other for ever. If it resigned it does not become eligible either, because its log has failed, but unsure: its
    log may be the longest.
    """
    leader = partition.leader
    assert leader is not None
    others = _without(partition.isr, leader)
    eligible = partition.eligible if resigned else (*partition.eligible, leader)
    if resigned:
        partition = replace(partition, unsure=tuple(sorted({*partition.unsure, leader})))
    chosen = _first(others, live, silent)
    if chosen is None and resigned:
        chosen = _first(_in_order(partition, eligible), live, silent)
        others = () if chosen is None else (chosen,)
    return None if chosen is None else _led_by(partition, chosen, others, eligible, partition.unsure)


def preferred(partition: PartitionState, live: Set[BrokerId]) -> PartitionState | None:
    """Give the leadership to the first replica; None if it is not in sync, or leads already."""
    first = partition.replicas[0]
    if partition.leader in (None, first) or first not in partition.isr or first not in live:
        return None
    return _led_by(partition, first, partition.isr, partition.eligible, partition.unsure)


def beside_wanted(
    partition: PartitionState, isr: tuple[BrokerId, ...], rules: ElectionRules
) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
    """Return (eligible, unsure) beside the ISR wanted by a leader that does not say that it commits.

    A replica that leaves the ISR has every acked message while that leader acks nothing: below `min_isr`, or beside
    others.
    """
    acks_nothing = len(isr) < rules.min_isr or partition.eligible or partition.unsure
    left = partition.isr if acks_nothing else ()
    unsure = _beside(isr, partition.unsure)
    return _beside((*isr, *unsure), (*partition.eligible, *left)), unsure


def _left(partition: PartitionState, broker_id: BrokerId) -> PartitionState:
    """Remove the broker from the ISR, unless it is the last member, and from the leadership."""
    leader = None if partition.leader == broker_id else partition.leader
    isr, eligible, unsure = partition.isr, partition.eligible, partition.unsure
    if broker_id in isr and len(isr) > 1:
        isr = _without(isr, broker_id)
        eligible = _beside(isr, (*eligible, broker_id))
    elif leader == partition.leader:
        return partition
    return PartitionState(
        partition.replicas, isr, eligible, leader, partition.leader_epoch, partition.version,
        partition.awaited_data_dir_id, unsure, partition.observers,
    )  # fmt: skip


def _elected(
    partition: PartitionState,
    live: Set[BrokerId],
    rules: ElectionRules,
    *,
    emptied: BrokerId | None = None,
    silent: Set[BrokerId] = _NOBODY,
) -> Elected:
    """Elect a leader if there is none and a replica may lead. `emptied` is live and was in memory only."""
    if partition.leader is not None:
        return Elected(partition)
    isr, eligible, unsure = partition.isr, partition.eligible, partition.unsure
    here = isr if partition.awaited_data_dir_id is None else ()
    sure = tuple(one for one in here if one != emptied and one not in unsure)
    if (chosen := _first(sure, live, silent)) is not None:
        return Elected(_led_by(partition, chosen, isr, eligible, partition.unsure))
    if (chosen := _first(_in_order(partition, eligible), live, silent)) is not None:
        # A last member whose disk is missing has no data, and is no more eligible than a new replica.
        return Elected(_led_by(partition, chosen, (chosen,), (*eligible, *sure), partition.unsure))
    if emptied is not None and emptied in here:
        return Elected(_led_by(partition, emptied, isr, eligible, partition.unsure))
    if recovers(partition, live):
        there = [one for one in partition.replicas if one in live]
        if len(there) > 1:
            return Elected(partition)  # recovery: wait for the log ends
        return Elected(_led_by(partition, there[0], (there[0],), eligible, partition.unsure))
    return _elected_uncleanly(partition, live, rules, silent)


def _elected_uncleanly(
    partition: PartitionState, live: Set[BrokerId], rules: ElectionRules, silent: Set[BrokerId]
) -> Elected:
    """Elect a leader that may lack acked messages, if the stream allows it."""
    if not rules.allow_unclean_election:
        return Elected(partition)
    # First replicas that once had everything. A last member of the ISR that is live has an empty disk: all others have
    # more.
    unsure = _in_order(partition, partition.unsure)
    outside = tuple(one for one in partition.replicas if one not in partition.isr)
    for may_lead in (unsure, outside, partition.isr):
        if (chosen := _first(may_lead, live, silent)) is not None:
            return Elected(_led_by(partition, chosen, (chosen,), (), ()), is_unclean=True)
    return Elected(partition)


def _led_by(
    partition: PartitionState,
    leader: BrokerId,
    isr: tuple[BrokerId, ...],
    eligible: tuple[BrokerId, ...],
    unsure: tuple[BrokerId, ...],
) -> PartitionState:
    """Begin a leadership of a replica that has everything; the others with everything are kept until it commits."""
    epoch = LeaderEpoch(partition.leader_epoch + 1)
    unsure = _beside(isr, unsure)
    eligible = _beside((*isr, *unsure), eligible)
    version, observers = partition.version, partition.observers
    return PartitionState(partition.replicas, isr, eligible, leader, epoch, version, None, unsure, observers)


def _beside(isr: tuple[BrokerId, ...], others: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return tuple(sorted(set(others).difference(isr)))


def _first(brokers: tuple[BrokerId, ...], live: Set[BrokerId], silent: Set[BrokerId]) -> BrokerId | None:
    may = [broker_id for broker_id in brokers if broker_id in live]
    return next((broker_id for broker_id in may if broker_id not in silent), may[0] if may else None)


def _in_order(partition: PartitionState, brokers: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in partition.replicas if broker_id in brokers)


def _without(brokers: tuple[BrokerId, ...], gone: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in brokers if broker_id != gone)
