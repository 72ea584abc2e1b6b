"""Streams that Penstock makes for itself, and keeps for itself: clients read them, and change nothing in them.

`__offsets` holds where groups of consumers are (`penstock.groups.rows`). It is made when it is first needed, with as
many replicas as any other stream. Nobody listens for it: what is in it came over the socket, from a leader that knew
what it was doing. One that an earlier version has made is altered, once all brokers know what that means.

`__staged-<id>` holds what is staged for the stream of that id (see `staging`). It has as many partitions, and each has
the replicas of the other's: so whoever leads that one has what was staged on its own disk. It goes when that one goes.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.config import Acks, Encryption, Storage, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import StreamId
from penstock.base.staged import staged_for, staged_name, staged_subject
from penstock.base.subjects import INTERNAL_NAME_PREFIX
from penstock.groups.rows import OFFSETS_STREAM, SUBJECT
from penstock.messages import AlterStreamRequest, CreateStreamRequest, Request
from penstock.metadata.commands import AlterStream, DeleteStream
from penstock.metadata.image import ClusterImage, StreamState
from penstock.node.partition import Partition


def offsets_config(encryption: Encryption = Encryption.NONE) -> StreamConfig:
    """What `__offsets` is made with."""
    return StreamConfig(
        name=OFFSETS_STREAM,
        subject=SUBJECT.decode(),
        acks=Acks.NEVER,
        segment_bytes=limits.OFFSETS_SEGMENT_BYTES,
        partitions=limits.OFFSETS_PARTITIONS,
        dedup_window_ms=None,
        compact=True,
        encryption=encryption,
    )


def staged_config(stream_id: StreamId, config: StreamConfig) -> StreamConfig:
    """What a stream is made with that holds what is staged for that one."""
    return StreamConfig(
        name=staged_name(stream_id),
        subject=staged_subject(stream_id),
        acks=Acks.NEVER,
        durability=config.durability,
        storage=Storage.FILE,  # also for one in memory: a day of what was staged is too much for that
        max_age_ms=limits.STAGED_AGE_MS,
        max_bytes=limits.STAGED_BYTES_MAX,
        max_message_bytes=limits.MESSAGE_BYTES_MAX,
        segment_bytes=min(limits.STAGED_SEGMENT_BYTES, config.segment_bytes),
        segment_age_ms=limits.STAGED_SEGMENT_AGE_MS,
        partitions=config.partitions,
        replicas=config.replicas,
        min_isr=config.min_isr,
        allow_unclean_election=config.allow_unclean_election,
        dedup_window_ms=None,
        encryption=config.encryption,
    )


def target_of(state: StreamState) -> StreamId | None:
    """For which stream it holds what is staged; None: it is another kind of stream."""
    stream_id = staged_for(state.config.name, state.config.subject)
    return None if stream_id is None else StreamId(stream_id)


def left_over(image: ClusterImage) -> DeleteStream | None:
    """A stream whose staged rows are for one that is gone; None: there is none."""
    for name, stream_id in image.names.items():
        if name.startswith(INTERNAL_NAME_PREFIX):
            target = target_of(image.streams[stream_id])
            if target is not None and target not in image.streams:
                return DeleteStream(stream_id=stream_id)
    return None


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
