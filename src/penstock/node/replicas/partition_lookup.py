"""Find the local replica that a request addresses, or the error why it cannot be used here."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.metadata.companions import find_stream, is_companion
from penstock.node.context import Context
from penstock.node.control.cluster import Cluster
from penstock.node.partition.leader_hints import no_leader_error, not_leader
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import partition_label
from penstock.node.replicas.companions import Companions


class PartitionLookup:
    """Looks up `partitions`; `failures` holds the errors of logs that cannot be opened."""

    def __init__(
        self,
        context: Context,
        cluster: Cluster,
        partitions: Mapping[PartitionKey, Partition],
        failures: Mapping[PartitionKey, RemoteError],
        companions: Companions,
    ) -> None:
        self._context = context
        self._cluster = cluster
        self._partitions = partitions
        self._failures = failures
        self._companions = companions

    def here(self, stream_id: int, number: int) -> Partition | None:
        """Return the local replica of a partition if it can be used, led here or not; None otherwise."""
        partition = self._partitions.get(PartitionKey(StreamId(stream_id), PartitionId(number)))
        return None if partition is None or partition.closed else partition

    def held(self, stream_id: int, number: int) -> Partition:
        """Return the local replica of a partition to read its messages, a read replica (observer) included.

        RemoteError as from `replica`, and `Companions.check_readable`; stream_not_found for a companion log.
        """
        _check_for_users(stream_id)
        partition = self.replica(stream_id, number)
        self._companions.check_readable(partition)
        return partition

    def replica(self, stream_id: int, number: int) -> Partition:
        """Return the local replica of a partition or of a companion log, a read replica (observer) included.

        RemoteError as from `ClusterImage.by_id`; not_yet, bad_request, not_leader, storage_failed, no_encryption_key.
        """
        key = PartitionKey(StreamId(stream_id), PartitionId(number))
        partition = self._partitions.get(key)
        if partition is not None:
            if partition.closed:
                raise RemoteError(ErrorCode.STORAGE_FAILED, f"{partition.label} cannot be used: {partition.closed}")
            return partition
        state = find_stream(self._context.image, StreamId(stream_id))
        if state is None:
            self._cluster.check_knows()
            state = self._context.image.by_id(stream_id)
        count = len(state.partitions)
        if number >= count:
            has = "1 partition" if count == 1 else f"{count} partitions"
            text = f"stream {state.name!r} has {has}, counted from 0; there is no partition {number}"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        if self._context.settings.broker_id not in state.partitions[number].holders:
            raise not_leader(self._context.image, state, number)
        opening = RemoteError(ErrorCode.NOT_YET, "its log is being opened; try again in a moment")
        failure = self._failures.get(key, opening)
        text = f"{partition_label(state, number)} cannot be used: {failure.message}"
        raise RemoteError(failure.code, text, **failure.details)

    def led(self, stream_id: int, number: int) -> Partition:
        """Return the local replica of a partition that this broker leads. RemoteError as from `replica`; not_leader."""
        _check_for_users(stream_id)
        partition = self.replica(stream_id, number)
        if (refusal := no_leader_error(self._context.image, partition)) is not None:
            raise refusal
        return partition

    def readable(self, stream_id: int, number: int) -> Partition:
        """Return the local replica of a partition that this broker leads, to read it. As `led` and `held`."""
        partition = self.led(stream_id, number)
        self._companions.check_readable(partition)
        return partition


def _check_for_users(stream_id: int) -> None:
    """Raise RemoteError (stream_not_found) for a companion log: it is part of its stream."""
    if is_companion(stream_id):
        text = f"there is no stream with id {stream_id}"
        raise RemoteError(ErrorCode.STREAM_NOT_FOUND, text, stream_id=stream_id)
