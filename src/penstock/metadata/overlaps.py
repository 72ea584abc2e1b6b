"""Streams that store messages of the same subjects.

Rules: a stream of one partition stores its own subjects; of more partitions, `<subject>.*` as well. A stream that would
overlap those of later partitions is told to the caller, and refused only once there are some: JetStream's clients make
streams on `a` and on `a.b`.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import overlap
from penstock.metadata.image import ClusterImage, StreamState


def overlapping(image: ClusterImage, config: StreamConfig) -> Iterator[StreamState]:
    """Yield the users' other streams with overlapping subjects, those of later partitions included, in the order of
    their creation.
    """
    patterns = config.listening_patterns
    found = image.heads.near(patterns)
    for state in image.streams.values() if found is None else (image.streams[one] for one in found):
        if state.name != config.name and not state.config.is_internal and _overlap(state.config, patterns):
            yield state


def check_no_overlap(image: ClusterImage, config: StreamConfig) -> None:
    """Raise RemoteError (subjects_overlap) if another stream of users stores messages of the same subjects."""
    stored = _stored(config)
    others = overlapping(image, config)
    if any(overlap(one, other) for state in others for one in _stored(state.config) for other in stored):
        # not named: the caller may not see it
        text = f"another stream stores messages of the same subjects as {config.name!r} would"
        raise RemoteError(ErrorCode.SUBJECTS_OVERLAP, text)


def _stored(config: StreamConfig) -> tuple[str, ...]:
    """Return patterns of what a stream stores with the partitions that it has."""
    return config.subjects if config.partitions == 1 else config.listening_patterns


def _overlap(one: StreamConfig, patterns: tuple[str, ...]) -> bool:
    return any(overlap(mine, theirs) for mine in one.listening_patterns for theirs in patterns)
