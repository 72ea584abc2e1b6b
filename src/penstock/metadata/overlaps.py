"""Streams that store messages of the same subjects."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import overlap
from penstock.metadata.image import ClusterImage, StreamState

_WILDCARDS = ("*", ">")


def overlapping(image: ClusterImage, config: StreamConfig) -> Iterator[StreamState]:
    """Yield the users' other streams with overlapping subjects."""
    heads = tuple(one.partition(".")[0] for one in config.subjects)
    takes_any = any(head in _WILDCARDS for head in heads)
    for state in image.streams.values():
        # a cheap test first: most differ in the first token
        if not takes_any and state.config.more_subjects is msgspec.UNSET:
            subject = state.config.subject
            is_near = subject.startswith(heads) or subject[0] in _WILDCARDS
        else:
            is_near = takes_any or any(one.startswith(heads) or one[0] in _WILDCARDS for one in state.config.subjects)
        if is_near and state.name != config.name and not state.config.is_internal and _overlap(state.config, config):
            yield state


def check_no_overlap(image: ClusterImage, config: StreamConfig) -> None:
    """Raise RemoteError (subjects_overlap) if another stream of users stores messages of the same subjects."""
    if next(overlapping(image, config), None) is not None:  # not named: the caller may not see it
        text = f"another stream stores messages of the same subjects as {config.name!r} would"
        raise RemoteError(ErrorCode.SUBJECTS_OVERLAP, text)


def _overlap(one: StreamConfig, other: StreamConfig) -> bool:
    return any(overlap(mine, theirs) for mine in one.listening_patterns for theirs in other.listening_patterns)
