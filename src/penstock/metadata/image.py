"""The cluster image: the immutable value that the metadata commands fold to.

Rules: `apply` is a pure function of image, index and command, so every broker that has the same commands has the same
image. It decides what a command comes to: two creates of one name may both be on their way, and the second finds the
stream there. It does not ask whether a config is allowed: that was decided when the command was journaled, and a later
version that allows less must not lose what is there. An image is never changed; a later one shares with it what stayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.config import ALTERABLE, StreamConfig, check_stream_config
from penstock.base.errors import ConfigError, ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, StreamId
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream
from penstock.metadata.persistent import PersistentMap

_ON_FIRST_BROKER = (BrokerId(1),)


@dataclass(frozen=True, slots=True)
class PartitionState:
    """Who holds a partition and who leads it. Partitions that agree in all of it may share one."""

    replicas: tuple[BrokerId, ...]  # the preferred leader first
    isr: tuple[BrokerId, ...]  # in-sync replicas; never empty
    eligible: tuple[BrokerId, ...]  # left the ISR while it was as small as `min_isr`: may lead until commits resume
    leader: BrokerId | None  # None: nobody may lead now
    leader_epoch: LeaderEpoch  # raised whenever a leadership starts, also by the same broker
    version: int  # raised with every change: what a change of the ISR compares with

    @classmethod
    def made(cls, replicas: tuple[BrokerId, ...]) -> PartitionState:
        """As it is when it is made: all replicas are in sync, for there is nothing yet."""
        return cls(replicas, replicas, (), replicas[0], LeaderEpoch(1), 1)


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream as the cluster agreed on it."""

    stream_id: StreamId
    config: StreamConfig  # `replicas` and `min_isr` are numbers
    created_us: int
    partitions: tuple[PartitionState, ...]  # by their number

    @property
    def name(self) -> str:
        """The stream's name, unique in the cluster."""
        return self.config.name


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to. `stream` is the stream it was about, as it is now (or was, when deleted)."""

    stream: StreamState | None = None
    changed: bool = False
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All that the commands up to `index` add up to."""

    index: int = 0
    streams: PersistentMap[StreamId, StreamState] = field(default_factory=PersistentMap)
    names: PersistentMap[str, StreamId] = field(default_factory=PersistentMap)

    def by_name(self, name: str) -> StreamState:
        """The stream of that name; RemoteError stream_not_found."""
        stream_id = self.names.get(name)
        if stream_id is None:
            raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream {name!r}", name=name)
        return self.streams[stream_id]

    def by_id(self, stream_id: int) -> StreamState:
        """The stream with that id; RemoteError stream_changed if it was deleted, stream_not_found if it never was."""
        state = self.streams.get(StreamId(stream_id))
        if state is not None:
            return state
        if 0 < stream_id <= self.index:
            text = f"stream {stream_id} was deleted; a stream that was created again under its name is another one"
            raise RemoteError(ErrorCode.STREAM_CHANGED, text, stream_id=stream_id)
        raise RemoteError(ErrorCode.STREAM_NOT_FOUND, f"there is no stream with id {stream_id}", stream_id=stream_id)


def check_create(image: ClusterImage, config: StreamConfig, *, live_brokers: int) -> StreamState | None:
    """The stream that is already there as `config` wants it, or None if one can be made; else RemoteError."""
    try:
        check_stream_config(config)
    except ConfigError as error:
        raise _invalid(error.mistakes) from None
    existing = _existing(image, config)
    if existing is None:
        _check_room(image, config.partitions)
        _check_replicas(config, live_brokers)
    return existing


def _invalid(mistakes: list[str]) -> RemoteError:
    return RemoteError(ErrorCode.INVALID_CONFIG, "; ".join(mistakes), mistakes=mistakes)


def _check_room(image: ClusterImage, partitions: int) -> None:
    if len(image.streams) >= limits.STREAMS_MAX:
        raise RemoteError(ErrorCode.TOO_LARGE, f"there are {limits.STREAMS_MAX} streams already; delete some first")
    if partitions == 1:  # then the limit above is enough
        return
    there = sum(len(state.partitions) for state in image.streams.values())
    if there + partitions > limits.PARTITIONS_MAX:
        text = f"all streams have {there} partitions together; with {partitions} more they pass {limits.PARTITIONS_MAX}"
        raise RemoteError(ErrorCode.TOO_LARGE, text)


def _check_replicas(config: StreamConfig, live_brokers: int) -> None:
    replicas = replicas_wanted(config, live_brokers)
    if replicas > live_brokers:
        raise _invalid([f"replicas: {replicas} brokers are to hold a copy each, but there are {live_brokers}"])
    if config.min_isr is not None and config.min_isr > replicas:
        raise _invalid([f"min_isr: {config.min_isr} in-sync replicas cannot be had of {replicas}"])


def replicas_wanted(config: StreamConfig, live_brokers: int) -> int:
    """How many brokers are to hold each partition of a new stream."""
    return min(limits.REPLICAS_DEFAULT, live_brokers) if config.replicas is None else config.replicas


def created_config(config: StreamConfig, replicas: int) -> StreamConfig:
    """`config` with numbers where None left the choice to whoever makes the stream."""
    if config.replicas is not None and config.min_isr is not None:
        return config
    replicas = replicas if config.replicas is None else config.replicas
    min_isr = (replicas + 1) // 2 if config.min_isr is None else config.min_isr
    return msgspec.structs.replace(config, replicas=replicas, min_isr=min_isr)


def _existing(image: ClusterImage, config: StreamConfig) -> StreamState | None:
    """The stream of that name; RemoteError stream_exists if it has another config."""
    stream_id = image.names.get(config.name)
    if stream_id is None:
        return None
    existing = image.streams[stream_id]
    assert existing.config.replicas is not None
    config = created_config(config, existing.config.replicas)
    if existing.config == config:
        return existing
    differences = differing_fields(existing.config, config)
    text = ", ".join(f"{name} is {have!r}, not {want!r}" for name, (have, want) in differences.items())
    raise RemoteError(
        ErrorCode.STREAM_EXISTS,
        f"stream {config.name!r} is there with another config: {text}; alter it, delete it or take another name",
        differences={name: [have, want] for name, (have, want) in differences.items()},
    )


def differing_fields(have: StreamConfig, want: StreamConfig) -> dict[str, tuple[Any, Any]]:
    """Field → (value in `have`, value in `want`), as plain values."""
    old, new = msgspec.to_builtins(have), msgspec.to_builtins(want)
    return {name: (old[name], new[name]) for name in old if old[name] != new[name]}


def altered_config(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    """`config` with `changes`; RemoteError invalid_config with every mistake."""
    mistakes = []
    for name in changes:
        if name not in StreamConfig.__struct_fields__:
            mistakes.append(f"{name}: a stream has no such field")
        elif name not in ALTERABLE:
            mistakes.append(f"{name}: cannot be changed once the stream is there")
    changed = config
    if not mistakes:
        try:
            changed = check_stream_config(_merged(config, changes))
        except RemoteError as error:
            mistakes.append(error.message)
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise _invalid(mistakes)
    return changed


def _merged(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    assert config.replicas is not None
    try:
        changed = msgspec.convert({**msgspec.to_builtins(config), **changes}, StreamConfig)
        return created_config(changed, config.replicas)
    except msgspec.ValidationError as error:
        raise RemoteError(ErrorCode.INVALID_CONFIG, str(error)) from None


def apply(image: ClusterImage, index: int, command: Command) -> tuple[ClusterImage, Outcome | RemoteError]:
    """The image after `command`, and what it came to. A refused command changes nothing but the index."""
    assert index == image.index + 1, (index, image.index)
    try:
        return _change(image, index, command)
    except RemoteError as error:
        return replace(image, index=index), error


def _change(image: ClusterImage, index: int, command: Command) -> tuple[ClusterImage, Outcome]:
    streams, names = image.streams, image.names
    if isinstance(command, CreateStream):
        existing = _existing(image, command.config)
        if existing is not None:
            return replace(image, index=index), Outcome(stream=existing)
        made = _made(index, command)
        image = ClusterImage(index, streams.with_item(made.stream_id, made), names.with_item(made.name, made.stream_id))
        return image, Outcome(stream=made, changed=True)
    if isinstance(command, AlterStream):
        state = image.by_id(command.stream_id)
        altered = replace(state, config=_merged(state.config, command.changes))
        image = ClusterImage(index, streams.with_item(state.stream_id, altered), names)
        return image, Outcome(stream=altered, changed=altered != state)
    if isinstance(command, DeleteStream):
        state = image.by_id(command.stream_id)
        image = ClusterImage(index, streams.without(state.stream_id), names.without(state.name))
        return image, Outcome(stream=state, changed=True, deleted=True)
    raising = Raising()
    raised = {stream_id: raising.stream(state, 1) for stream_id, state in streams.items()}
    return ClusterImage(index, PersistentMap(raised), names), Outcome(changed=True)


def _made(index: int, command: CreateStream) -> StreamState:
    assignments = command.assignments or (_ON_FIRST_BROKER,) * command.config.partitions
    config = created_config(command.config, len(assignments[0]))
    made = {replicas: PartitionState.made(replicas) for replicas in assignments}
    partitions = tuple(made[replicas] for replicas in assignments)
    return StreamState(StreamId(index), config, command.created_us, partitions)


class Raising:
    """Begins leaderships of many streams. What is equal before is one object afterwards: nearly all of them are."""

    def __init__(self) -> None:
        self._raised: dict[tuple[tuple[PartitionState, ...], int], tuple[PartitionState, ...]] = {}

    def stream(self, state: StreamState, by: int) -> StreamState:
        """`state` after `by` starts of its leaders."""
        key = (state.partitions, by)
        raised = self._raised.get(key)
        if raised is None:
            raised = self._raised[key] = tuple(
                replace(one, leader_epoch=LeaderEpoch(one.leader_epoch + by), version=one.version + by)
                for one in state.partitions
            )
        return StreamState(state.stream_id, state.config, state.created_us, raised)
