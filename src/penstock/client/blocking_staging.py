"""The blocking face of staging: the asyncio one, on the client's thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from penstock.client import staging
from penstock.client.staged_runs import Published
from penstock.client.staging import PublishedQuery, Staged
from penstock.client.threads import LoopThread
from penstock.client.values import StreamName


class Staging:
    """`client.staging`: rows staged, and published exactly once; see `penstock.client.staging`."""

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
        """Stage rows for a partition; columns as in `Client.append`. Nobody reads them until they are published.

        They stay for a day, as long as no more than 8 GiB of the partition are staged behind them. With `query_id` and
        `batch_id` they can be published as that batch only, and their space is free some minutes after it is published;
        that takes both. `timeout` is for all of it. Refused is what the stream would refuse: RemoteError too_large,
        bad_request, StreamNotFound, StreamChanged, StorageFailed, TimedOut.
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
        """Publish what was staged for a partition, in this order, as batch `batch_id` of a query; once, whoever asks.

        Batches of a query rise; of each partition the leader knows the last one, for seven days. Without rows nothing
        is done. It is asked again until it is answered, or `timeout` has passed.
        StagedLost: some of it has expired, or was lost by an unclean election; nothing of it, or no more of it, is
        published. RemoteError: run_unfinished, an earlier batch of the query is not published to its end;
        out_of_sequence, the log has lost what it had acked; too_large; bad_request. StreamChanged, ReadOnly,
        StorageFailed; TimedOut: it may be published or not, so ask again.
        """
        publish = self._staging.publish
        return self._thread.run(
            publish(stream, staged, query_id=query_id, batch_id=batch_id, partition=partition, timeout=timeout)
        )

    def queries(
        self, stream: StreamName, *, partition: int | None = None, timeout: float = 10.0
    ) -> list[PublishedQuery]:
        """Which queries have published into a stream in the last seven days, as the leaders know. StreamNotFound."""
        return self._thread.run(self._staging.queries(stream, partition=partition, timeout=timeout))
