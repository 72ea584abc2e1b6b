"""Changes of single partitions: ISR changes by their leaders, and leader elections.

Rules:
- An ISR change is a compare-and-set: it comes from the incarnation of the broker that leads, in its leader epoch, and
  names the version that it has seen. Every member must be live in the incarnation that the leader names: a replica that
  has restarted since may have lost what the leader counted.
- Each change in a command has its own result; a later one sees the effect of an earlier one.
- Another leader is elected only if the named leadership still lasts, and another replica may lead.
- The longest log leads only if no replica has led since, and every incarnation that reported its log is still live.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from msgspec.structs import replace as with_fields

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, PartitionKey, StreamId
from penstock.messages.peers import IsrChange
from penstock.metadata import elections
from penstock.metadata.commands import (
    ChangeIsr,
    Election,
    ElectionReason,
    ElectLeaders,
    PartitionRecovery,
    RecoverPartitions,
)
from penstock.metadata.elections import ElectionRules
from penstock.metadata.image import ClusterImage, CommandOutcome, PartitionState, StreamState

_T = TypeVar("_T", IsrChange, Election, PartitionRecovery)


def change_isr(image: ClusterImage, index: int, command: ChangeIsr) -> tuple[ClusterImage, CommandOutcome]:
    """Change ISRs; the outcome's `results` has the result of each. RemoteError (stale_incarnation) refuses all."""
    image.live_run(command.broker_id, command.incarnation)

    def changed(partition: PartitionState, rules: ElectionRules, change: IsrChange) -> PartitionState:
        _check_leadership(partition, command.broker_id, change)
        return _with_isr(image, partition, rules, change)

    return _each(image, command.changes, changed)


def _check_leadership(partition: PartitionState, broker_id: BrokerId, change: IsrChange) -> None:
    if change.leader_epoch != partition.leader_epoch:
        code = ErrorCode.FENCED_EPOCH if change.leader_epoch < partition.leader_epoch else ErrorCode.UNKNOWN_EPOCH
        text = f"the leader epoch is {partition.leader_epoch}, not {change.leader_epoch}"
        raise RemoteError(code, text, leader_epoch=partition.leader_epoch)
    if partition.leader != broker_id:
        text = f"the leader is {_named(partition.leader)}, not broker {broker_id}"
        raise RemoteError(ErrorCode.NOT_LEADER, text, leader=partition.leader, leader_epoch=partition.leader_epoch)
    if change.version != partition.version:
        text = f"the partition is at version {partition.version}, not {change.version}"
        raise RemoteError(ErrorCode.VERSION_CONFLICT, text, version=partition.version)


def _named(leader: BrokerId | None) -> str:
    return "no broker" if leader is None else f"broker {leader}"


def _with_isr(
    image: ClusterImage, partition: PartitionState, rules: ElectionRules, change: IsrChange
) -> PartitionState:
    wanted = {member.broker_id for member in change.isr}
    if len(wanted) != len(change.isr) or not wanted.issubset(partition.replicas) or partition.leader not in wanted:
        text = f"an ISR of {sorted(wanted)} is invalid: it must have the leader, and other replicas, each once"
        raise RemoteError(ErrorCode.BAD_REQUEST, text)
    for member in change.isr:
        image.live_run(member.broker_id, member.incarnation)
    isr = tuple(broker_id for broker_id in partition.replicas if broker_id in wanted)
    eligible, unsure = ((), ()) if change.commits_resumed else elections.beside_wanted(partition, isr, rules)
    # Raise the version even if the members stay: it invalidates changes that the leader gave up.
    return with_fields(partition, isr=isr, eligible=eligible, unsure=unsure, version=partition.version + 1)


def elect_leaders(image: ClusterImage, index: int, command: ElectLeaders) -> tuple[ClusterImage, CommandOutcome]:
    """Elect other leaders; `CommandOutcome.results` has the result of each election."""
    live, silent = image.live_brokers(), frozenset(command.silent)

    def elected(partition: PartitionState, rules: ElectionRules, election: Election) -> PartitionState:
        if partition.leader is None or election.leader_epoch != partition.leader_epoch:
            raise _in_another_epoch(partition, election.leader_epoch)
        if election.reason is ElectionReason.PREFERRED:
            chosen = elections.preferred(partition, live)
        else:
            resigned = election.reason is ElectionReason.RESIGNED
            chosen = elections.leader_changed(partition, live, rules, resigned=resigned, silent=silent)
        if chosen is None:
            raise RemoteError(ErrorCode.NOT_ENOUGH_REPLICAS, "there is no other replica that may lead")
        return chosen

    return _each(image, command.elections, elected)


def _in_another_epoch(partition: PartitionState, meant: LeaderEpoch) -> RemoteError:
    text = f"{_named(partition.leader)} leads in epoch {partition.leader_epoch}, not {meant}"
    return RemoteError(ErrorCode.VERSION_CONFLICT, text, version=partition.version)


def recover_partitions(
    image: ClusterImage, index: int, command: RecoverPartitions
) -> tuple[ClusterImage, CommandOutcome]:
    """Elect the longest logs; the outcome's `results` has each result, `recovered` the successful ones."""
    live, silent = image.live_brokers(), frozenset(command.silent)
    recovered: list[PartitionRecovery] = []
    unclean: list[PartitionKey] = []

    def led(partition: PartitionState, rules: ElectionRules, recovery: PartitionRecovery) -> PartitionState:
        if partition.leader is not None or recovery.leader_epoch != partition.leader_epoch:
            raise _in_another_epoch(partition, recovery.leader_epoch)
        for end in recovery.ends:
            image.live_run(end.broker_id, end.incarnation)
        ends = {end.broker_id: end for end in recovery.ends}
        elected = elections.recovered(partition, ends, live, rules, silent=silent)
        if elected is None:
            text = (
                "not all replicas with every acked message have reported their log ends, or a failed log may be longer"
            )
            raise RemoteError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
        recovered.append(recovery)
        if elected.is_unclean:
            unclean.append(PartitionKey(recovery.stream_id, recovery.partition))
        return elected.partition

    image, outcome = _each(image, command.recoveries, led)
    return image, replace(outcome, recovered=tuple(recovered), unclean=tuple(unclean))


def _each(
    image: ClusterImage, wishes: Iterable[_T], change: Callable[[PartitionState, ElectionRules, _T], PartitionState]
) -> tuple[ClusterImage, CommandOutcome]:
    """Apply `change` to the partition of each wish."""
    changed: dict[StreamId, StreamState] = {}
    results: list[int | RemoteError] = []
    keys: dict[PartitionKey, None] = {}
    for wish in wishes:
        try:
            image.partition(wish.stream_id, wish.partition)
            state = changed.get(wish.stream_id) or image.by_id(wish.stream_id)
            before = state.partitions[wish.partition]
            partition = elections.after(before, change(before, ElectionRules.of(state), wish))
        except RemoteError as error:
            results.append(error)
            continue
        results.append(partition.version)
        if partition is not before:
            changed[state.stream_id] = _with_partition(state, wish.partition, partition)
            keys[PartitionKey(wish.stream_id, wish.partition)] = None
    image = replace(image, streams=image.streams.with_items(changed))
    return image, CommandOutcome(changed=bool(keys), partitions=tuple(keys), results=tuple(results))


def _with_partition(state: StreamState, number: int, partition: PartitionState) -> StreamState:
    partitions = (*state.partitions[:number], partition, *state.partitions[number + 1 :])
    return state.with_partitions(partitions)
