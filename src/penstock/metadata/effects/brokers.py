"""Broker commands: register, fence, stop, and their effect on every partition that the broker holds; the feature level.

Theory: a command about a broker makes one pass over all partitions of the cluster. No index by broker is kept: it would
have to be maintained, and this pass takes some milliseconds of a failover. Equal partitions with equal rules share one
result object, which is nearly all of a large cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import msgspec

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, Incarnation, PartitionId, PartitionKey, StreamId
from penstock.metadata import elections
from penstock.metadata.commands import FenceBroker, RaiseFeatureLevel, RegisterBroker, StopBroker
from penstock.metadata.elections import BrokerReturn, Elected, ElectionRules
from penstock.metadata.feature_levels import LEADER_DECIDES, FeatureLevel, level_of, level_text
from penstock.metadata.feature_versions import too_old_for
from penstock.metadata.image import BrokerState, ClusterImage, CommandOutcome, PartitionState, StreamState

_Change: TypeAlias = Callable[[PartitionState, ElectionRules], Elected]


def register_broker(image: ClusterImage, index: int, command: RegisterBroker) -> tuple[ClusterImage, CommandOutcome]:
    """Begin an incarnation of a broker; one that is still live ends. RemoteError if it is older than the level."""
    check_level(image, command.broker_id, command.broker_version)
    broker_id = command.broker_id
    known = image.brokers.get(broker_id)
    clean_stop = command.clean_stop and (known is None or _knows_last_run(command, known))
    registered = BrokerState(
        broker_id,
        command.address,
        command.rack,
        command.data_dir_id,
        Incarnation(index),
        is_live=True,
        clean_stop=clean_stop,
        broker_version=command.broker_version,
        process=command.process,
    )
    back = BrokerReturn(
        broker_id,
        clean_stop=clean_stop,
        data_dir_id=command.data_dir_id,
        last_data_dir_id=command.data_dir_id if known is None else known.data_dir_id,
    )
    image = replace(image, brokers=image.brokers.with_item(broker_id, registered))
    live = image.live_brokers()
    return _everywhere(image, broker_id, lambda one, rules: elections.returned(one, back, live, rules))


def check_level(image: ClusterImage, broker_id: BrokerId, broker_version: str) -> None:
    """Raise RemoteError (unsupported_version) if a broker of that version is older than the cluster's level."""
    if level_of(broker_version) < image.feature_level:
        level = level_text(image.feature_level)
        text = (
            f"broker {broker_id} is of version {broker_version}, and the cluster is at feature level {level}, which is "
            f"never lowered: start this broker with version {level} or later"
        )
        raise RemoteError(ErrorCode.UNSUPPORTED_VERSION, text, broker_id=int(broker_id), feature_level=level)


def raise_feature_level(
    image: ClusterImage, index: int, command: RaiseFeatureLevel
) -> tuple[ClusterImage, CommandOutcome]:
    """Raise the level, and give streams what it brings.

    RemoteError change_refused if it is lower now, unsupported_version if a broker is older.
    """
    if command.feature_level < image.feature_level:
        text = (
            f"the cluster is at feature level {level_text(image.feature_level)}, and it is never lowered, as to "
            f"{level_text(command.feature_level)}: data of the higher level may be written already"
        )
        raise RemoteError(ErrorCode.CHANGE_REFUSED, text)
    if command.feature_level == image.feature_level:
        return image, CommandOutcome()
    older = too_old_for(image.brokers.values(), command.feature_level)
    if older is not None:
        raise older
    raised = replace(image, feature_level=command.feature_level)
    for state in gaining_marks(image, command.feature_level):
        raised = raised.with_changed(msgspec.structs.replace(state, has_marks=True))
    return raised, CommandOutcome(changed=True)


def gaining_marks(image: ClusterImage, level: FeatureLevel) -> list[StreamState]:
    """Return the streams that get logs of marks at that level: leaders decide on rollups from then on, by marks."""
    if level < LEADER_DECIDES.level:
        return []
    return [state for state in image.streams.values() if state.config.allow_rollup and not state.has_marks]


def _knows_last_run(command: RegisterBroker, known: BrokerState) -> bool:
    is_same_process = command.process != "" and command.process == known.process
    return is_same_process or command.run_before in (0, known.incarnation)


def fence_broker(image: ClusterImage, index: int, command: FenceBroker) -> tuple[ClusterImage, CommandOutcome]:
    """Fence an incarnation whose session timed out. Raise RemoteError (stale_incarnation) if it has ended already."""
    return _ended(image, command, clean_stop=False)


def stop_broker(image: ClusterImage, index: int, command: StopBroker) -> tuple[ClusterImage, CommandOutcome]:
    """End an incarnation that is stopping. Raise RemoteError (stale_incarnation) if it has ended already."""
    return _ended(image, command, clean_stop=True)


def _ended(
    image: ClusterImage, command: FenceBroker | StopBroker, *, clean_stop: bool
) -> tuple[ClusterImage, CommandOutcome]:
    broker_id = command.broker_id
    broker = image.live_run(broker_id, command.incarnation)
    ended = msgspec.structs.replace(broker, is_live=False, clean_stop=clean_stop)
    image = replace(image, brokers=image.brokers.with_item(broker_id, ended))
    live, silent = image.live_brokers(), frozenset(command.silent)
    return _everywhere(image, broker_id, lambda one, rules: elections.gone(one, broker_id, live, rules, silent=silent))


def _everywhere(image: ClusterImage, broker_id: BrokerId, change: _Change) -> tuple[ClusterImage, CommandOutcome]:
    """Apply `change` to every partition that the broker holds."""
    done: dict[tuple[PartitionState, ElectionRules], Elected] = {}
    changed: dict[StreamId, StreamState] = {}
    keys: list[PartitionKey] = []
    unclean: list[PartitionKey] = []
    for stream_id, state in image.streams.items():
        if not any(broker_id in partition.replicas for partition in state.partitions):
            continue
        rules = ElectionRules.of(state)
        partitions = list(state.partitions)
        is_changed = False
        for number, before in enumerate(partitions):
            elected = done.get((before, rules))
            if elected is None:
                made = change(before, rules)
                elected = done[before, rules] = Elected(elections.after(before, made.partition), made.is_unclean)
            if elected.partition.version != before.version:
                is_changed = True
                partitions[number] = elected.partition
                key = PartitionKey(stream_id, PartitionId(number))
                keys.append(key)
                if elected.is_unclean:
                    unclean.append(key)
        if is_changed:
            changed[stream_id] = state.with_partitions(tuple(partitions))
    image = replace(image, streams=image.streams.with_items(changed))
    return image, CommandOutcome(changed=True, partitions=tuple(keys), unclean=tuple(unclean))
