"""Streams that Penstock makes for itself, and keeps for itself: clients read them, and change nothing in them.

`__offsets` holds where groups of consumers are (`penstock.groups.rows`). It is made when it is first needed, with as
many replicas as any other stream. Nobody listens for it: what is in it came over the socket, from a leader that knew
what it was doing. One that an earlier version has made is altered, once all brokers know what that means.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.config import Acks, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.subjects import INTERNAL_NAME_PREFIX
from penstock.groups.rows import OFFSETS_STREAM, SUBJECT
from penstock.messages import AlterStreamRequest, CreateStreamRequest, Request
from penstock.metadata.commands import AlterStream
from penstock.metadata.image import ClusterImage
from penstock.node.partition import Partition


def offsets_config() -> StreamConfig:
    """What `__offsets` is made with."""
    return StreamConfig(
        name=OFFSETS_STREAM,
        subject=SUBJECT.decode(),
        acks=Acks.NEVER,
        segment_bytes=limits.OFFSETS_SEGMENT_BYTES,
        partitions=limits.OFFSETS_PARTITIONS,
        dedup_window_ms=None,
        compact=True,
    )


def overdue_alteration(image: ClusterImage, version: str) -> AlterStream | None:
    """What `__offsets` lacks that was made before there was compaction; None: nothing, or it is not time for it.

    A broker of an earlier version ends when it hears of a field that it does not know. So this waits until those of the
    cluster are all of this broker's `version`: also the ones that are away, and may come back as they were, and itself,
    which may lead before it has said that it is another one now.
    """
    if OFFSETS_STREAM not in image.names:
        return None
    state = image.by_name(OFFSETS_STREAM)
    if not state.config.is_internal or state.config.compact:
        return None
    if {broker.broker_version for broker in image.brokers.values()} != {version}:
        return None
    return AlterStream(stream_id=state.stream_id, changes={"compact": True})


def check_users_own(image: ClusterImage, request: Request) -> None:
    """RemoteError invalid_config, read_only: the stream that a client wants made or changed is not for users."""
    name = request.config.name if isinstance(request, CreateStreamRequest) else getattr(request, "name", "")
    if not name.startswith(INTERNAL_NAME_PREFIX):
        return
    if name in image.names:
        if image.by_name(name).config.is_internal and not _lets_others_lead(request):
            raise _not_for_users(name)
    elif isinstance(request, CreateStreamRequest):
        mistake = f"name: names that begin with {INTERNAL_NAME_PREFIX!r}, as {name!r}, are Penstock's own"
        raise RemoteError(ErrorCode.INVALID_CONFIG, mistake, mistakes=[mistake])


def _lets_others_lead(request: Request) -> bool:
    """What only people can decide: that a replica which lacks something may lead rather than none."""
    return isinstance(request, AlterStreamRequest) and request.changes.keys() == {"allow_unclean_election"}


def users_own(partition: Partition) -> Partition:
    """The partition itself, or RemoteError read_only: it is not for users to change."""
    if partition.stream.config.is_internal:
        raise _not_for_users(partition.stream.name)
    return partition


def _not_for_users(name: str) -> RemoteError:
    text = f"stream {name!r} is Penstock's own: it can be read, and nothing in it changed but allow_unclean_election"
    return RemoteError(ErrorCode.READ_ONLY, text)
