"""Adding partitions to a stream, and the move of keys to them.

Rules: partitions are only added, after the existing ones. A key moves at most from an older partition to a new one
(`penstock.hot.keymap`). A partition's messages of keys that leave it end before its mark, once its leader has reported
it; a stream grows again only when all its partitions have their marks, or if keys are not bound to partitions. A lower
mark replaces one of an earlier epoch: an unclean election has lost what lay between.

    add partitions ─▶ leaders of the older ones refuse moving keys ─▶ mark, mark, mark ─▶ the new ones begin
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from penstock.base import limits
from penstock.base.config import Intake, StreamConfig, check_stream_config, field_type_mistake
from penstock.base.errors import ConfigError, ErrorCode, RemoteError
from penstock.base.ids import PartitionId
from penstock.base.partitioning import PartitionBy, parse_split
from penstock.metadata.commands import AddPartitions, MarkKeys
from penstock.metadata.effects.streams import check_epoch, made_partitions, no_such_field
from penstock.metadata.image import ClusterImage, CommandOutcome, KeyBoundary, StreamState
from penstock.metadata.partition_names import check_names


def check_growth(image: ClusterImage, state: StreamState, changes: Mapping[str, Any]) -> StreamConfig:
    """Return the config after the change. Raise RemoteError (invalid_config, read_only, not_yet, stream_exists).

    `changes`: `partitions`, `range_bounds` (all of them, existing ones first), or both, and nothing else.
    """
    config = state.config
    before = len(state.partitions)
    mistakes = []
    for name, value in changes.items():
        if name not in StreamConfig.__struct_fields__:
            mistakes.append(no_such_field(name))
        elif name not in ("partitions", "range_bounds"):
            mistakes.append(f"{name}: partitions are added by themselves; change it before or afterwards")
        elif (mistake := field_type_mistake(name, value)) is not None:
            mistakes.append(mistake)
    if mistakes:
        raise _invalid(mistakes)
    range_bounds = tuple(changes.get("range_bounds", config.range_bounds))
    partitions = changes.get("partitions", len(range_bounds) + 1 if "range_bounds" in changes else before)
    if partitions < before:
        mistakes.append(f"partitions: there are {before}, and none can be taken away: their messages would go with it")
    if range_bounds[: len(config.range_bounds)] != config.range_bounds:
        text = f"those that there are stay, in their order, before new ones: {','.join(config.range_bounds)}"
        mistakes.append(f"range_bounds: {text}")
    if parse_split(config.partition_by).how is PartitionBy.MAPPED:
        text = "nats-server finds the partition, and with more of them most keys go to another one while others read on"
        mistakes.append(f"partitions: {text}; make another stream")
    if len(state.counts) >= limits.KEY_MAP_VERSIONS_MAX:
        text = f"partitions were added {limits.KEY_MAP_VERSIONS_MAX - 1} times, which is the limit; make another stream"
        mistakes.append(f"partitions: {text}")
    if config.range_bounds and "range_bounds" not in changes and partitions > before:
        text = f"say where the {partitions - before} new ones begin, behind {','.join(config.range_bounds)}"
        mistakes.append(f"range_bounds: {text}")
    grown = msgspec.structs.replace(config, partitions=partitions, range_bounds=range_bounds)
    if not mistakes:
        try:
            check_stream_config(grown)
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise _invalid(mistakes)
    if partitions > before:
        _check_may_grow(state)
        check_names(image, grown, before)
    return grown


def _invalid(mistakes: list[str]) -> RemoteError:
    return RemoteError(ErrorCode.INVALID_CONFIG, "; ".join(mistakes), mistakes=mistakes)


def _check_may_grow(state: StreamState) -> None:
    if state.intake is Intake.SEALED:
        raise RemoteError(ErrorCode.READ_ONLY, f"stream {state.name!r} is sealed: it takes nothing, and needs no more")
    if state.is_moving:
        missing = sorted(set(range(state.counts[-2])) - state.marked(state.counts[-1]).keys())
        text = f"keys of stream {state.name!r} are still moving to the partitions that were added last"
        raise RemoteError(
            ErrorCode.NOT_YET, f"{text}: partition {missing[0]} has not handed over its keys yet; retry later"
        )


def add_partitions(image: ClusterImage, index: int, command: AddPartitions) -> tuple[ClusterImage, CommandOutcome]:
    """Add partitions to a stream. Raise RemoteError as `ClusterImage.by_id`, or stream_changed, read_only, not_yet,
    stream_exists.
    """
    state = image.by_id(command.stream_id)
    before = len(state.partitions)
    if before != command.before:
        text = f"stream {state.name!r} has {before} partitions, not {command.before}: it got more meanwhile"
        raise RemoteError(ErrorCode.STREAM_CHANGED, text, partitions=before)
    _check_may_grow(state)
    added = made_partitions(image, state.config, command.assignments, command.observers)
    config = msgspec.structs.replace(
        state.config,
        partitions=before + len(added),
        range_bounds=(*state.config.range_bounds, *command.range_bounds),
    )
    check_names(image, config, before)
    changed = msgspec.structs.replace(
        state,
        config=config,
        partitions=(*state.partitions, *added),
        counts=(*(state.counts or (before,)), before + len(added)),
    )
    outcome = CommandOutcome(stream=changed, changed=True, partitions=changed.partition_keys())
    return image.with_placed(changed), outcome


def mark_keys(image: ClusterImage, index: int, command: MarkKeys) -> tuple[ClusterImage, CommandOutcome]:
    """Record a partition's mark. Raise RemoteError as `check_epoch`, or bad_request."""
    check_epoch(image, command)
    state = image.by_id(command.stream_id)
    if command.partitions not in state.counts[1:] or not state.moves_keys:
        text = f"stream {state.name!r} never got so many partitions: {command.partitions}"
        raise RemoteError(ErrorCode.BAD_REQUEST, text)
    if command.partition >= state.counts[state.counts.index(command.partitions) - 1]:
        text = f"partition {command.partition} of stream {state.name!r} was itself added with them"
        raise RemoteError(ErrorCode.BAD_REQUEST, text)
    known = state.marked(command.partitions).get(command.partition)
    if known is not None and not (known.leader_epoch < command.leader_epoch and command.end_offset < known.end_offset):
        return image, CommandOutcome(stream=state)
    where = command.partitions, PartitionId(command.partition), command.end_offset
    now = KeyBoundary(*where, command.leader_epoch, command.marked_us)
    others = (one for one in state.marks if one is not known)
    marks = tuple(sorted((*others, now), key=lambda one: (one.partitions, one.partition)))
    changed = msgspec.structs.replace(state, marks=marks)
    streams = image.streams.with_item(state.stream_id, changed)
    return replace(image, streams=streams), CommandOutcome(stream=changed, changed=True)
