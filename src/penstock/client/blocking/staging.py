"""Staging of the blocking client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from penstock.client.append import staging
from penstock.client.append.staged_runs import Published
from penstock.client.append.staging import PublishedQuery, Staged
from penstock.client.blocking.threads import LoopThread
from penstock.client.values import StreamName


class Staging:
    """`client.staging`: stage rows and publish them exactly once; see `penstock.client.append.staging`."""

    def __init__(self, staging: staging.Staging, thread: LoopThread) -> None:
        self._staging = staging
        self._thread = thread

    def stage(
        self,
        stream: StreamName,
        data: Any,
        *,
        partition: int = 0,
        query_id: UUID | bytes | str | None = None,
        batch_id: int | None = None,
        timeout: float = 60.0,
    ) -> Staged:
        """Stage rows for a partition; columns as in `Client.append`. They are invisible until they are published.

        Staged rows expire after a day, or when more than 8 GiB are staged behind them in the partition. With `query_id`
        and `batch_id` (both or neither) they can be published only as that batch, and their space is freed some minutes
        after that. `timeout` applies to the whole call. Rows that the stream would refuse are refused: RemoteError
        too_large, bad_request, StreamNotFound, StreamChanged, StorageFailed, TimedOut.
        """
        return self._thread.run(
            self._staging.stage(
                stream, data, partition=partition, query_id=query_id, batch_id=batch_id, timeout=timeout
            )
        )

    def publish(
        self,
        stream: StreamName,
        staged: Iterable[Staged],
        *,
        query_id: UUID | bytes | str,
        batch_id: int,
        partition: int = 0,
        timeout: float = 60.0,
    ) -> Published:
        """Publish rows staged for a partition, in this order, as batch `batch_id` of a query; at most once in total.

        The batch numbers of a query must increase; for each partition the leader remembers the last one for seven days.
        Without rows nothing is done. The call retries until it is answered or `timeout` has passed.
        StagedLost: some rows have expired, or were lost by an unclean leader election; nothing, or nothing more, is
        published. RemoteError: run_unfinished, an earlier batch of the query is only partly published; out_of_sequence,
        the log has lost acked rows; too_large; bad_request. StreamChanged, ReadOnly, StorageFailed; TimedOut: it may be
        published or not, so call again.
        """
        publish = self._staging.publish
        return self._thread.run(
            publish(stream, staged, query_id=query_id, batch_id=batch_id, partition=partition, timeout=timeout)
        )

    def queries(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[PublishedQuery]:
        """Return the queries that published into a stream in the last seven days, as leaders know. StreamNotFound."""
        return self._thread.run(self._staging.queries(stream, partition=partition, timeout=timeout))
