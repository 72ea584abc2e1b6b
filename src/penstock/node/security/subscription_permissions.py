"""Permission checks for the subjects that a user's stream subscribes to, because it may take messages from other
streams.

Rules: a stream is created, and gets more partitions, only on subjects that its creator's rules cover: if each partition
has a subject of its own (`partition_by` publisher, mapped), on all of them. A rule about streams by name covers them
all. It gets more subjects only from a user who may also create a stream on these. NATS delivers each message to one
member of a queue group, so a stream in a group takes messages away from streams of that group with overlapping
subjects. It is created, or gets more partitions or subjects, only by a user who may `alter` all of these. A stream that
may get partitions later counts as if it had them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.access import Operation
from penstock.access.handshake import Principal
from penstock.access.rules import refused_subject
from penstock.base import limits
from penstock.base.config import StreamConfig, stream_config_mistakes
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import subject_mistake
from penstock.metadata.image import ClusterImage, StreamState
from penstock.metadata.overlaps import overlapping
from penstock.node.security.permission_cache import PermissionCache
from penstock.node.security.permission_errors import not_authorized

_GROWS = ("partitions", "range_bounds")


def check_may_create(judge: PermissionCache, who: Principal | None, image: ClusterImage, config: StreamConfig) -> None:
    """Raise RemoteError (not_authorized) if `who` may not create that stream. An invalid config is not checked here."""
    _check_may_store(judge, who, config.name, config.subjects)
    if config.name in image.names or stream_config_mistakes(config):
        return
    _check_subjects(judge, who, config, Operation.CREATE)
    _check_group(judge, who, image, config)


def _check_may_store(judge: PermissionCache, who: Principal | None, name: str, subjects: Sequence[str]) -> None:
    for subject in subjects[: limits.STREAM_SUBJECTS_MAX]:  # more are refused anyway
        if not judge.scope_of(Operation.CREATE, name, (subject,)).is_all:
            raise not_authorized(who, Operation.CREATE, f"stream {name!r} on {subject!r}")


def check_may_add_subjects(
    judge: PermissionCache, who: Principal | None, image: ClusterImage, state: StreamState, added: Sequence[str]
) -> None:
    """Raise RemoteError (not_authorized) if `who`, who may alter the stream, may not have it store these subjects."""
    new = tuple(one for one in added if one not in state.config.subjects)
    _check_may_store(judge, who, state.name, new)
    if len(new) > limits.STREAM_SUBJECTS_MAX or any(subject_mistake(one, wildcards=True) for one in new):
        return  # it is refused for that
    if new:
        _check_group(judge, who, image, msgspec.structs.replace(state.config, subject=new[0], more_subjects=new[1:]))


def check_may_add_partitions(
    judge: PermissionCache, who: Principal | None, image: ClusterImage, state: StreamState, changes: Mapping[str, Any]
) -> None:
    """Raise RemoteError (not_authorized) if `who`, who may alter the stream, may not add these partitions."""
    if not any(name in changes for name in _GROWS):
        return
    known = {name: changes[name] for name in _GROWS if name in changes}
    try:
        config = msgspec.convert({**msgspec.to_builtins(state.config), **known}, StreamConfig)
    except msgspec.ValidationError:
        return  # the alteration is refused for that
    if config.partitions <= len(state.partitions) or stream_config_mistakes(config):
        return
    _check_subjects(judge, who, config, Operation.ALTER)
    _check_group(judge, who, image, config)


def _check_subjects(judge: PermissionCache, who: Principal | None, config: StreamConfig, operation: Operation) -> None:
    if not (config.partitions > 1 and config.split.has_subjects):
        return
    found = judge.scope_of(operation, config.name, (f"{config.subject}.*",))
    if found.is_all:
        return
    subjects = (config.subject_of(number) for number in range(config.partitions))
    beyond = refused_subject((one for one in subjects if one != config.subject), found.subjects)
    if beyond is not None:
        where = f"stream {config.name!r} with a partition on {beyond!r}, where one of its {config.partitions} listens"
        raise not_authorized(who, operation, where)


def _check_group(judge: PermissionCache, who: Principal | None, image: ClusterImage, config: StreamConfig) -> None:
    if config.group is None:
        return
    sharing = (state for state in overlapping(image, config) if state.config.group == config.group)
    kept = [state for state in sharing if not judge.scope(Operation.ALTER, state).is_all]
    if kept:
        raise _denied_group(judge, who, config, kept)


def _denied_group(
    judge: PermissionCache, who: Principal | None, config: StreamConfig, kept: list[StreamState]
) -> RemoteError:
    seen = sorted(state.name for state in kept if judge.sees(state))
    whose = f"stream {seen[0]!r}, which that user may not alter" if seen else "a stream that you may not see"
    more = f" ({len(kept)} such streams)" if len(kept) > 1 else ""
    user = "somebody" if who is None else repr(who.name)
    on = ", ".join(map(repr, config.subjects))
    text = (
        f"user {user} may not have stream {config.name!r} listen in the group {config.group!r} on {on}: "
        f"it would take messages from {whose}{more}; take another group, or none"
    )
    return RemoteError(ErrorCode.NOT_AUTHORIZED, text, operation=str(Operation.ALTER), group=config.group)
