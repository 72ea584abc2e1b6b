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
from penstock.base.ids import LeaderEpoch, StreamId
from penstock.metadata.commands import AlterStream, Command, CreateStream, DeleteStream
from penstock.metadata.persistent import PersistentMap


@dataclass(frozen=True, slots=True)
class StreamState:
    """One stream as the cluster agreed on it."""

    stream_id: StreamId
    config: StreamConfig
    created_us: int
    leader_epoch: LeaderEpoch  # of its one partition

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


def check_create(image: ClusterImage, config: StreamConfig) -> StreamState | None:
    """The stream that is already there as `config` wants it, or None if one can be made; else RemoteError."""
    try:
        check_stream_config(config)
    except ConfigError as error:
        raise RemoteError(ErrorCode.INVALID_CONFIG, "; ".join(error.mistakes), mistakes=error.mistakes) from None
    existing = _existing(image, config)
    if existing is None and len(image.streams) >= limits.STREAMS_MAX:
        raise RemoteError(ErrorCode.TOO_LARGE, f"there are {limits.STREAMS_MAX} streams already; delete some first")
    return existing


def _existing(image: ClusterImage, config: StreamConfig) -> StreamState | None:
    """The stream of that name; RemoteError stream_exists if it has another config."""
    stream_id = image.names.get(config.name)
    if stream_id is None:
        return None
    existing = image.streams[stream_id]
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
        raise RemoteError(ErrorCode.INVALID_CONFIG, "; ".join(mistakes), mistakes=mistakes)
    return changed


def _merged(config: StreamConfig, changes: Mapping[str, Any]) -> StreamConfig:
    try:
        return msgspec.convert({**msgspec.to_builtins(config), **changes}, StreamConfig)
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
        made = StreamState(StreamId(index), command.config, command.created_us, LeaderEpoch(1))
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
    raised = {stream_id: _raised(state) for stream_id, state in streams.items()}
    return ClusterImage(index, PersistentMap(raised), names), Outcome(changed=True)


def _raised(state: StreamState) -> StreamState:
    return StreamState(state.stream_id, state.config, state.created_us, LeaderEpoch(state.leader_epoch + 1))
