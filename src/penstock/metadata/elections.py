"""Who leads a partition when brokers come and go: pure functions of one partition's state.

Rules:
- A leader is chosen among the live members of the ISR, in the order of the replicas; those come last that the metadata
  leader has not heard of lately (`silent`), who may be dead.
- Where none is live, an eligible replica leads: it left the ISR when nothing could be acked without it any more, so it
  has all that was.
- Who of these comes back from an unclean stop is unsure: it may have lost something. It leads neither before one that
  is sure nor while one is away that may be.
- Once all are live, and unsure, the partition is in recovery (`recovers`): every replica that is live tells where its
  log ends, and the longest of theirs leads, or another one that goes on where that ends (`recovered`). One that is
  there alone leads.
- Who comes back with another disk has nothing any more. The ISR never becomes empty: its last member stays in it, even
  without its disk, for which the partition waits if nobody else had all that was acked.
- Only where the stream allows it does another replica lead then, and it is said that acked messages may be lost.
- Every start of a leadership has a leader epoch of its own.

    who leaves the ISR            becomes eligible if      and no more, once
    -------------------------     --------------------     -------------------------------------------------
    fenced, stopped, moved        always                   the leader says that it commits (it waits with that)
    behind, says its leader       |isr| < min_isr, or      it returns from an unclean stop: then it is unsure
                                  others are eligible      it returns with another disk
                                  or unsure already        or it held the stream in memory only

    who had all that was acked     becomes unsure when it        and no more, once
    --------------------------     -------------------------     -------------------------------------------------
    eligible, or last in the ISR   returns from an unclean       as above; or it is in sync again, or leads; or it
                                   stop with its own disk        has as much as the longest log, which leads: then
    leader                         has resigned: its log may     it is eligible
                                   have failed

Why the first row: whom the cluster elects may be dead for as long as a session, and may come back without its tail. Who
was taken out for it has all that was acked, until the new leader lives and says that it goes on without it.

Theory: who had all that was acked has a beginning of such a log, for an unclean stop takes a tail only. Of two of them
the longer one has what the other one has of it, by whatever order. That is not so of all logs: one that was out of sync
may end in the tail of a later leader epoch that nobody acked, where what was acked is of an earlier one (Raft's figure
8). Such a log leads only if the longest of those that count is a beginning of it, which is known where both end in the
same leader epoch. The idea is KIP-966's ("unclean recovery").

The functions below leave `version` as it is: a command raises it once for all that it does (`after`).
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


class Rules(NamedTuple):
    """What a stream's config says about the leadership of its partitions."""

    min_isr: int
    allow_unclean_election: bool
    is_in_memory: bool = False  # a replica is empty after a restart, however clean that was

    @classmethod
    def of(cls, state: StreamState) -> Rules:
        """Those of a stream, whose `min_isr` is a number once it is made."""
        config = state.config
        assert config.min_isr is not None
        return cls(config.min_isr, config.allow_unclean_election, config.storage is Storage.MEMORY)


class Elected(NamedTuple):
    """A partition, and whether its new leader may lack what was acked."""

    partition: PartitionState
    is_unclean: bool = False


class Return(NamedTuple):
    """How a broker comes back."""

    broker_id: BrokerId
    clean_stop: bool
    data_dir_id: str
    last_data_dir_id: str  # with which it was registered before


def after(before: PartitionState, changed: PartitionState) -> PartitionState:
    """`changed` with a version of its own, or `before` if it is the same."""
    return before if changed == before else replace(changed, version=before.version + 1)


def gone(
    partition: PartitionState,
    broker_id: BrokerId,
    live: Set[BrokerId],
    rules: Rules,
    *,
    silent: Set[BrokerId] = _NOBODY,
) -> Elected:
    """A broker has stopped or was fenced. `live`: who is left."""
    if broker_id not in partition.replicas:
        return Elected(partition)
    return _elected(_left(partition, broker_id), live, rules, silent=silent)


def returned(partition: PartitionState, broker: Return, live: Set[BrokerId], rules: Rules) -> Elected:
    """A broker has registered, perhaps without having been fenced before. `live`: all that are there, with it."""
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


def altered(partition: PartitionState, live: Set[BrokerId], rules: Rules) -> Elected:
    """The rules are others now."""
    return _elected(partition, live, rules)


def holders(partition: PartitionState) -> frozenset[BrokerId]:
    """Who had all that was acked, on a disk that is not known to be gone; some of them may have lost it."""
    isr = partition.isr if partition.awaited_data_dir_id is None else ()
    return frozenset((*isr, *partition.eligible, *partition.unsure))


def recovers(partition: PartitionState, live: Set[BrokerId]) -> bool:
    """Whether the longest log is to lead: all who had all that was acked are live, and none of them is sure."""
    return partition.leader is None and bool(partition.unsure) and holders(partition) <= live


def recovered(
    partition: PartitionState,
    ends: Mapping[BrokerId, ReplicaEnd],
    live: Set[BrokerId],
    rules: Rules,
    *,
    silent: Set[BrokerId] = _NOBODY,
) -> Elected | None:
    """Led by the longest of the logs that end so; None where none may lead.

    Who counts had all that was acked. Another replica leads only if its log goes on where theirs ends. Who has as much
    as the leader is as good: eligible. A log that has failed cannot lead; where that of one who counts may be longer
    than all that can, or has not been told of, another leads only if the stream allows it.
    """
    if not recovers(partition, live):
        return None
    having = holders(partition)
    may_lead = tuple(one for one in partition.replicas if one in live and one in ends and not ends[one].has_failed)
    known = [end for one in having if (end := ends.get(one)) is not None and not end.is_unknown]
    whole = _going_on(may_lead, ends, max(known, key=_length)) if len(known) == len(having) else ()
    is_unclean = not whole
    if is_unclean and not (may_lead and rules.allow_unclean_election):
        return None
    among = whole or tuple(one for one in may_lead if one in having) or may_lead
    longest = max(ends[one].length for one in among)
    equals = tuple(one for one in among if ends[one].length == longest)
    # One that had all has it on its disk, as far as that was promised; another one may yet have it in memory only.
    chosen = _first(tuple(one for one in equals if one in having) or equals, live, silent)
    assert chosen is not None
    if is_unclean:
        return Elected(_led_by(partition, chosen, (chosen,), (), ()), is_unclean)
    # Who has less counts on: the longest log may be in memory only, and be lost before its leader says that it commits.
    unsure = tuple(one for one in having if one not in equals)
    return Elected(_led_by(partition, chosen, (chosen,), equals, unsure))


def _going_on(
    brokers: tuple[BrokerId, ...], ends: Mapping[BrokerId, ReplicaEnd], beginning: ReplicaEnd
) -> tuple[BrokerId, ...]:
    """Whose log is known to begin with that one."""
    if not beginning.last_epoch and not beginning.log_end:
        return brokers
    return tuple(
        one
        for one in brokers
        if ends[one].last_epoch == beginning.last_epoch and ends[one].log_end >= beginning.log_end
    )


def _length(end: ReplicaEnd) -> tuple[LeaderEpoch, Offset]:
    return end.length


def moved(
    partition: PartitionState,
    live: Set[BrokerId],
    rules: Rules,
    *,
    resigned: bool,
    silent: Set[BrokerId] = _NOBODY,
) -> PartitionState | None:
    """Another leader than the present one, which is live but cannot serve; None if nobody else may lead.

    It leaves the ISR in any case: brokers that do not reach each other would else take the lead from each other for
    ever. One that has resigned is not eligible either: its log has failed. But it may be the longest.
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
    """Led by the first of its replicas; None if that one is not in sync, or leads."""
    first = partition.replicas[0]
    if partition.leader in (None, first) or first not in partition.isr or first not in live:
        return None
    return _led_by(partition, first, partition.isr, partition.eligible, partition.unsure)


def beside_wanted(
    partition: PartitionState, isr: tuple[BrokerId, ...], rules: Rules
) -> tuple[tuple[BrokerId, ...], tuple[BrokerId, ...]]:
    """Who is eligible and who unsure beside the ISR that a leader wants that does not say that it commits.

    Who leaves it has all that was acked, as long as that leader acks nothing: below `min_isr`, or beside others.
    """
    acks_nothing = len(isr) < rules.min_isr or partition.eligible or partition.unsure
    left = partition.isr if acks_nothing else ()
    unsure = _beside(isr, partition.unsure)
    return _beside((*isr, *unsure), (*partition.eligible, *left)), unsure


def _left(partition: PartitionState, broker_id: BrokerId) -> PartitionState:
    """Without a leader, if it was the broker, and with it in the ISR only if it is the last there."""
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
    rules: Rules,
    *,
    emptied: BrokerId | None = None,
    silent: Set[BrokerId] = _NOBODY,
) -> Elected:
    """With a leader, if it has none and anybody may lead. `emptied` is live, and held the partition in memory only."""
    if partition.leader is not None:
        return Elected(partition)
    isr, eligible, unsure = partition.isr, partition.eligible, partition.unsure
    here = isr if partition.awaited_data_dir_id is None else ()
    sure = tuple(one for one in here if one != emptied and one not in unsure)
    if (chosen := _first(sure, live, silent)) is not None:
        return Elected(_led_by(partition, chosen, isr, eligible, partition.unsure))
    if (chosen := _first(_in_order(partition, eligible), live, silent)) is not None:
        # A last member whose disk is not there has nothing, and is no more eligible than a new replica.
        return Elected(_led_by(partition, chosen, (chosen,), (*eligible, *sure), partition.unsure))
    if emptied is not None and emptied in here:
        return Elected(_led_by(partition, emptied, isr, eligible, partition.unsure))
    if recovers(partition, live):
        there = [one for one in partition.replicas if one in live]
        if len(there) > 1:
            return Elected(partition)  # until it is known whose log is the longest
        return Elected(_led_by(partition, there[0], (there[0],), eligible, partition.unsure))
    return _elected_uncleanly(partition, live, rules, silent)


def _elected_uncleanly(partition: PartitionState, live: Set[BrokerId], rules: Rules, silent: Set[BrokerId]) -> Elected:
    """With a leader, if the stream allows one that may lack what was acked."""
    if not rules.allow_unclean_election:
        return Elected(partition)
    # First who had all once. A last member of the ISR that is here has an empty disk: anybody else has more.
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
    """By one that has all, beside those who have or had it, too: until it commits, as it will say."""
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
