"""Penstock's internal streams: clients may read them but not change them.

`__offsets` holds the committed offsets of consumer groups (`penstock.groups.rows`). It is created when it is first
needed, with as many replicas as any other stream. No leader subscribes for it: its rows come over the socket, from
another broker's checked request. One that an earlier version has created is altered once all brokers support that.

`__schemas` holds the schemas of streams (`penstock.schemas.rows`), in the same way, in one partition.

`__staged-<id>` holds the rows staged for the stream of that id (see `staging`). It has as many partitions, each on the
replicas of the target's partition: so the leader of that partition has the staged rows on its own disk. It is deleted
when its target is.
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
from penstock.node.partition.partition import Partition
from penstock.schemas.rows import SCHEMAS_STREAM
from penstock.schemas.rows import SUBJECT as SCHEMAS_SUBJECT


def offsets_config(encryption: Encryption = Encryption.NONE) -> StreamConfig:
    """Return the config with which `__offsets` is created."""
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


def schemas_config(encryption: Encryption = Encryption.NONE) -> StreamConfig:
    """Return the config with which `__schemas` is created."""
    return StreamConfig(
        name=SCHEMAS_STREAM,
        subject=SCHEMAS_SUBJECT.decode(),
        acks=Acks.NEVER,
        segment_bytes=limits.SCHEMA_SEGMENT_BYTES,
        dedup_window_ms=None,
        compact=True,
        encryption=encryption,
    )


def staged_config(stream_id: StreamId, config: StreamConfig) -> StreamConfig:
    """Return the config of the stream for rows staged for another stream."""
    return StreamConfig(
        name=staged_name(stream_id),
        subject=staged_subject(stream_id),
        acks=Acks.NEVER,
        durability=config.durability,
        storage=Storage.FILE,  # also for a target in memory, which could not hold a day of staged rows
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
    """Return the stream that this one holds staged rows for; None if it is not a staging stream."""
    stream_id = staged_for(state.config.name, state.config.subject)
    return None if stream_id is None else StreamId(stream_id)


def left_over(image: ClusterImage) -> DeleteStream | None:
    """Return the deletion of a staging stream whose target was deleted; None if there is none."""
    for name, stream_id in image.names.items():
        if name.startswith(INTERNAL_NAME_PREFIX):
            target = target_of(image.streams[stream_id])
            if target is not None and target not in image.streams:
                return DeleteStream(stream_id=stream_id)
    return None


def overdue_alteration(image: ClusterImage, version: str) -> AlterStream | None:
    """Return the alteration of an `__offsets` from before there was compaction; None if it needs none, or not yet.

    A broker of an earlier version ends when it reads an unknown field. So this waits until all brokers of the cluster
    have this broker's `version`: also those that are away and may come back unchanged, and this broker itself, which
    may lead before it has registered its new version.
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
    """Raise RemoteError invalid_config or read_only if a client's request creates or changes an internal stream."""
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
    """True if the request only allows an unclean election: that decision is left to the operator."""
    return isinstance(request, AlterStreamRequest) and request.changes.keys() == {"allow_unclean_election"}


def users_own(partition: Partition) -> Partition:
    """Return the partition; raise RemoteError read_only if its stream is internal."""
    users_own_stream(partition.stream)
    return partition


def users_own_stream(state: StreamState) -> StreamState:
    """Return the stream; raise RemoteError read_only if it is internal."""
    if state.config.is_internal:
        raise _not_for_users(state.name)
    return state


def _not_for_users(name: str) -> RemoteError:
    text = f"stream {name!r} is Penstock's own: clients may only read it and change allow_unclean_election"
    return RemoteError(ErrorCode.READ_ONLY, text)
