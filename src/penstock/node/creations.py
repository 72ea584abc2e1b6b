"""Who waits for a new stream: answered once NATS has confirmed the subscriptions of all its partitions.

Rules: what is published after the answer is stored. A creation is answered once, whatever comes first: all partitions
are subscribed, NATS refuses one of them, a log cannot be opened, the time is up, the stream or the broker is gone.
Partitions are looked at in their order, and each once: what was confirmed stays so until the connection is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping
from dataclasses import dataclass

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, PartitionKey, StreamId
from penstock.messages import CreateStreamResponse, StreamInfo
from penstock.metadata.image import StreamState
from penstock.node.partition import Partition
from penstock.node.step import Outbox

_NOT_CONFIRMED = "the stream is there, but NATS has not confirmed its subscription in time; it stores once NATS is back"
_NOT_OPENED = "the stream is there, but the disk has not made its files in time; it stores once they are there"


@dataclass(slots=True)
class Creation:
    """Somebody who waits for a stream's subscriptions."""

    caller: Hashable
    created: bool
    deadline_us: int
    confirmed: int = 0  # partitions from the first on


class Creations:
    """All that wait, by stream."""

    def __init__(
        self, outbox: Outbox, partitions: Mapping[PartitionKey, Partition], info: Callable[[StreamState], StreamInfo]
    ) -> None:
        self._outbox = outbox
        self._partitions = partitions
        self._info = info
        self._waiting: dict[StreamId, list[Creation]] = {}

    def add(self, state: StreamState, creation: Creation) -> None:
        """Answer when the stream is confirmed: now or later."""
        for number in range(len(state.partitions)):
            partition = self._partitions.get(PartitionKey(state.stream_id, PartitionId(number)))
            if partition is not None and partition.refusal:
                self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_REFUSED, partition.refusal))
                return
        self._waiting.setdefault(state.stream_id, []).append(creation)
        self.confirmed(state)

    def confirmed(self, state: StreamState) -> None:
        """A partition of the stream is subscribed: answer whose partitions all are."""
        waiting = self._waiting.get(state.stream_id)
        if waiting is None:  # as nearly always
            return
        left = []
        for creation in waiting:
            if self._is_confirmed(state, creation):
                response = CreateStreamResponse(stream=self._info(state), created=creation.created)
                self._outbox.reply(creation.caller, response)
            else:
                left.append(creation)
        if left:
            self._waiting[state.stream_id] = left
        else:
            del self._waiting[state.stream_id]

    def _is_confirmed(self, state: StreamState, creation: Creation) -> bool:
        while creation.confirmed < len(state.partitions):
            partition = self._partitions.get(PartitionKey(state.stream_id, PartitionId(creation.confirmed)))
            if partition is None or not partition.subscribed:
                return False
            creation.confirmed += 1
        return True

    def lost(self) -> None:
        """The connection to NATS is gone, and every subscription with it."""
        for waiting in self._waiting.values():
            for creation in waiting:
                creation.confirmed = 0

    def take(self, stream_id: StreamId) -> list[Creation]:
        """Those who wait for this stream; the caller answers them."""
        return self._waiting.pop(stream_id, [])

    def fail(self, stream_id: StreamId, error: RemoteError) -> None:
        """Tell all that wait for this stream."""
        for creation in self.take(stream_id):
            self._outbox.reply(creation.caller, error)

    def stop(self, error: RemoteError) -> None:
        """Tell all that wait."""
        for stream_id in list(self._waiting):
            self.fail(stream_id, error)

    def expire(self, now_us: int, opening: Container[StreamId]) -> None:
        """Answer those whose time is up. `opening`: streams of which a disk thread still opens a log."""
        for stream_id, waiting in list(self._waiting.items()):
            left = []
            for creation in waiting:
                if creation.deadline_us > now_us:
                    left.append(creation)
                elif stream_id in opening:
                    self._outbox.reply(creation.caller, RemoteError(ErrorCode.TIMED_OUT, _NOT_OPENED))
                else:
                    self._outbox.reply(creation.caller, RemoteError(ErrorCode.NATS_UNAVAILABLE, _NOT_CONFIRMED))
            if left:
                self._waiting[stream_id] = left
            else:
                del self._waiting[stream_id]

    @property
    def next_deadline_us(self) -> int | None:
        """When `expire` has something to do, at the latest."""
        if not self._waiting:  # as nearly always, and it is asked with every batch
            return None
        return min(creation.deadline_us for waiting in self._waiting.values() for creation in waiting)
