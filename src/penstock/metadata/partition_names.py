"""Names of partitions as streams that are read through JetStream's API (ADR 99), and of streams: one namespace.

Rules: partition N of a stream that has several is the stream `<name>-p<N>` there. From the feature level of that API on
no stream takes a partition's name, and no partition a stream's. Two that have one name are from below that level: the
API shows the stream.
"""

from __future__ import annotations

import re

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.metadata.feature_levels import JETSTREAM_API
from penstock.metadata.image import ClusterImage

_NAME = re.compile(r"(.+)-p(0|[1-9][0-9]{0,5})", re.DOTALL)


def partition_name(name: str, partition: int) -> str:
    """Return the name of the stream of one partition."""
    return f"{name}-p{partition}"


def parsed_name(name: str) -> tuple[str, int] | None:
    """Return the stream and the partition that a name may be about; None if it is no partition's."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], int(found[2]))


def check_names(image: ClusterImage, config: StreamConfig, before: int = 0) -> None:
    """Raise RemoteError (stream_exists) if a new stream, or one that had `before` partitions, takes a name in use.

    The error names no other stream: the caller may not see it.
    """
    if config.is_internal or not image.has_feature(JETSTREAM_API):
        return
    if not before and (found := parsed_name(config.name)) is not None:
        whole, number = found
        stream_id = image.names.get(whole)
        count = 0 if stream_id is None else len(image.streams[stream_id].partitions)
        if count > 1 and number < count:
            text = f"the name {config.name!r} is taken by a partition of a stream, as JetStream's API shows it"
            raise RemoteError(ErrorCode.STREAM_EXISTS, f"{text}: take another one", partition=number)
    if config.partitions == 1:
        return
    first = before if before > 1 else 0  # the only partition of a stream has no name
    for number in range(first, config.partitions):
        if (name := partition_name(config.name, number)) in image.names:
            text = f"partition {number} would be {name!r} in JetStream's API, and a stream has that name"
            advice = "take another one" if not before else "that stream has to go first"
            raise RemoteError(ErrorCode.STREAM_EXISTS, f"{text}: {advice}", partition=number)
