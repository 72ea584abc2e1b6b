"""Who leads a partition when brokers come and go: pure functions of one partition's state.

Rules:
- A leader is chosen among the live members of the ISR, in the order of the replicas; those come last that the metadata
  leader has not heard of lately (`silent`), who may be dead.
- Where none is live, an eligible replica leads: it left the ISR when nothing could be acked without it any more, so it
  has all that was. It leads before a last member that comes back from an unclean stop, which may have lost something.
- The ISR never becomes empty. Its last member stays in it, though away, and leads again when it returns with its own
  disk. Without it, it is as empty as a new broker, and the partition waits for the disk.
- Only where the stream allows it does another replica lead then, and it is said that acked messages may be lost.
- Every start of a leadership has a leader epoch of its own.

    who leaves the ISR        becomes eligible if      and no more, once
    ---------------------     --------------------     -------------------------------------------------
    fenced, stopped, behind   |isr| < min_isr          |isr| ≥ min_isr, or the leader says that it commits
                                                       it returns from an unclean stop, or with another disk,
                                                       or it held the stream in memory only

The functions below leave `version` as it is: a command raises it once for all that it does (`after`).
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from msgspec.structs import replace

from penstock.base.config import Storage
from penstock.base.ids import BrokerId, LeaderEpoch
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
    return _elected(_left(partition, broker_id, rules), live, rules, silent=silent)


def returned(partition: PartitionState, broker: Return, live: Set[BrokerId], rules: Rules) -> Elected:
    """A broker has registered, perhaps without having been fenced before. `live`: all that are there, with it."""
    broker_id = broker.broker_id
    if broker_id not in partition.replicas:
        return Elected(partition)
    partition = _left(partition, broker_id, rules)
    is_clean = broker.clean_stop and not rules.is_in_memory
    has_lost = not is_clean or broker.data_dir_id != broker.last_data_dir_id
    if has_lost and broker_id in partition.eligible:
        partition = replace(partition, eligible=_without(partition.eligible, broker_id))
    if partition.isr == (broker_id,):
        own = partition.awaited_data_dir_id or broker.last_data_dir_id
        awaited = None if broker.data_dir_id == own else own
        if awaited != partition.awaited_data_dir_id:
            partition = replace(partition, awaited_data_dir_id=awaited)
    return _elected(partition, live, rules, doubtful=None if is_clean else broker_id)


def altered(partition: PartitionState, live: Set[BrokerId], rules: Rules) -> Elected:
    """The rules are others now."""
    if partition.leader is None:
        return _elected(partition, live, rules)
    eligible = eligible_beside(partition.isr, partition.eligible, rules)
    return Elected(partition if eligible == partition.eligible else replace(partition, eligible=eligible))


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
    ever. One that has resigned is not eligible either: its log has failed.
    """
    leader = partition.leader
    assert leader is not None
    others = _without(partition.isr, leader)
    eligible = partition.eligible if resigned else (*partition.eligible, leader)
    chosen = _first(others, live, silent)
    if chosen is None and resigned:
        chosen = _first(_in_order(partition, eligible), live, silent)
        others = () if chosen is None else (chosen,)
    return None if chosen is None else _led_by(partition, chosen, others, eligible_beside(others, eligible, rules))


def preferred(partition: PartitionState, live: Set[BrokerId]) -> PartitionState | None:
    """Led by the first of its replicas; None if that one is not in sync, or leads."""
    first = partition.replicas[0]
    if partition.leader in (None, first) or first not in partition.isr or first not in live:
        return None
    return _led_by(partition, first, partition.isr, partition.eligible)


def eligible_beside(isr: tuple[BrokerId, ...], eligible: tuple[BrokerId, ...], rules: Rules) -> tuple[BrokerId, ...]:
    """Who of them has all that was acked while the ISR is this one: nobody, once messages can be acked without them."""
    return () if len(isr) >= rules.min_isr else tuple(sorted(set(eligible).difference(isr)))


def _left(partition: PartitionState, broker_id: BrokerId, rules: Rules) -> PartitionState:
    """Without a leader, if it was the broker, and with it in the ISR only if it is the last there."""
    leader = None if partition.leader == broker_id else partition.leader
    isr, eligible = partition.isr, partition.eligible
    if broker_id in isr and len(isr) > 1:
        isr = _without(isr, broker_id)
        eligible = eligible_beside(isr, (*eligible, broker_id), rules)
    elif leader == partition.leader:
        return partition
    return PartitionState(
        partition.replicas, isr, eligible, leader, partition.leader_epoch, partition.version,
        partition.awaited_data_dir_id,
    )  # fmt: skip


def _elected(
    partition: PartitionState,
    live: Set[BrokerId],
    rules: Rules,
    *,
    doubtful: BrokerId | None = None,
    silent: Set[BrokerId] = _NOBODY,
) -> Elected:
    """With a leader, if it has none and anybody may lead. `doubtful` is live, and may have lost what it had written."""
    if partition.leader is not None:
        return Elected(partition)
    isr, eligible = partition.isr, partition.eligible
    may_lead = () if partition.awaited_data_dir_id is not None else isr
    chosen = _first(tuple(one for one in may_lead if one != doubtful), live, silent)
    if chosen is None and (chosen := _first(_in_order(partition, eligible), live, silent)) is not None:
        # The disk of the last member is not there: it has nothing, and is no more eligible than a new replica.
        left = () if partition.awaited_data_dir_id is not None else isr
        left = tuple(one for one in left if one != doubtful)
        return Elected(_led_by(partition, chosen, (chosen,), eligible_beside((chosen,), (*eligible, *left), rules)))
    if chosen is None and doubtful in may_lead:
        chosen = doubtful
    if chosen is not None:
        return Elected(_led_by(partition, chosen, isr, eligible_beside(isr, eligible, rules)))
    if not rules.allow_unclean_election:
        return Elected(partition)
    # Whoever was last in sync has an empty disk, if it is there at all: anybody else has more.
    outside = tuple(one for one in partition.replicas if one not in isr)
    chosen = _first(outside, live, silent)
    if chosen is None and (chosen := _first(isr, live, silent)) is None:
        return Elected(partition)
    return Elected(_led_by(partition, chosen, (chosen,), ()), is_unclean=True)


def _led_by(
    partition: PartitionState, leader: BrokerId, isr: tuple[BrokerId, ...], eligible: tuple[BrokerId, ...]
) -> PartitionState:
    epoch = LeaderEpoch(partition.leader_epoch + 1)
    return PartitionState(partition.replicas, isr, eligible, leader, epoch, partition.version)


def _first(brokers: tuple[BrokerId, ...], live: Set[BrokerId], silent: Set[BrokerId]) -> BrokerId | None:
    may = [broker_id for broker_id in brokers if broker_id in live]
    return next((broker_id for broker_id in may if broker_id not in silent), may[0] if may else None)


def _in_order(partition: PartitionState, brokers: tuple[BrokerId, ...]) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in partition.replicas if broker_id in brokers)


def _without(brokers: tuple[BrokerId, ...], gone: BrokerId) -> tuple[BrokerId, ...]:
    return tuple(broker_id for broker_id in brokers if broker_id != gone)
