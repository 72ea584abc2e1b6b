"""Callers that wait until this broker has a stream: it knows the stream and has subscribed for what it leads of it.

Rules: a caller is answered once, by whatever comes first: the stream is known and all that this broker leads of it is
subscribed, NATS refuses a part, a log cannot be opened, the time is up, the stream is deleted, the broker stops.
Partitions are checked in their order, each once: a confirmation holds until the connection to NATS is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey, StreamId
from penstock.metadata.image import StreamState

_NOT_CONFIRMED = "the stream exists, but NATS has not confirmed its subscription in time; it stores once NATS is back"
_NOT_OPENED = "the stream exists, but its files were not created in time; it stores once they are"
_NOT_KNOWN = "the stream was created, but this broker has not learned of it in time"

Done = Callable[[RemoteError | None], None]


class ExpectedStream(NamedTuple):
    """State of a stream that a broker must have applied: this change of its intake, and this many partitions."""

    intake_us: int = 0
    partitions: int = 0

    @classmethod
    def of(cls, state: StreamState) -> ExpectedStream:
        """Return the present state of a stream."""
        return cls(state.intake_us, len(state.partitions))


ANYHOW = ExpectedStream()

WaitFor = Callable[[StreamId, int, Done, ExpectedStream], None]
"""Arguments: stream, deadline (elapsed µs), callback (None, or why the stream is not here), awaited state."""


@dataclass(slots=True, eq=False)
class _Waiter:
    done: Done
    deadline_us: int
    awaited: ExpectedStream
    confirmed: int = 0  # confirmed partitions, counted from the first


class StreamWaiters:
    """All waiting callers, by stream.

    `keys` returns a stream's partitions, None while the stream is unknown; `is_confirmed` is True if this broker has
    done its part for a partition; `is_opening` is True while a disk thread opens a log of the stream; `intake_us` is
    the time of the stream's last intake change in this broker's image.
    """

    def __init__(
        self,
        keys: Callable[[StreamId], tuple[PartitionKey, ...] | None],
        is_confirmed: Callable[[PartitionKey], bool],
        is_opening: Callable[[StreamId], bool],
        intake_us: Callable[[StreamId], int] = lambda _: 0,
    ) -> None:
        self._keys = keys
        self._is_confirmed = is_confirmed
        self._is_opening = is_opening
        self._intake_us = intake_us
        self._waiting: dict[StreamId, list[_Waiter]] = {}

    def wait(self, stream_id: StreamId, deadline_us: int, done: Done, awaited: ExpectedStream = ANYHOW) -> None:
        """Call `done` with None once this broker has the stream, or with the reason why it has not."""
        self._waiting.setdefault(stream_id, []).append(_Waiter(done, deadline_us, awaited))
        self.answer_met(stream_id)

    def answer_met(self, stream_id: StreamId) -> None:
        """Answer the callers whose condition the stream now meets."""
        waiting = self._waiting.get(stream_id)
        if waiting is None or (keys := self._keys(stream_id)) is None:  # the usual case
            return
        heard_us = self._intake_us(stream_id)
        ready = [
            one
            for one in waiting
            if one.awaited.intake_us <= heard_us and one.awaited.partitions <= len(keys) and self._is_ready(keys, one)
        ]
        if not ready:
            return
        left = [one for one in waiting if one not in ready]
        if left:
            self._waiting[stream_id] = left
        else:
            del self._waiting[stream_id]
        for one in ready:
            one.done(None)

    def _is_ready(self, keys: tuple[PartitionKey, ...], waiter: _Waiter) -> bool:
        while waiter.confirmed < len(keys) and self._is_confirmed(keys[waiter.confirmed]):
            waiter.confirmed += 1
        return waiter.confirmed == len(keys)

    def lost(self) -> None:
        """Forget all confirmations: the connection to NATS is lost, and every subscription with it."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                waiter.confirmed = 0

    def fail(self, stream_id: StreamId, error: RemoteError) -> None:
        """Answer all that wait for this stream."""
        for waiter in self._waiting.pop(stream_id, ()):
            waiter.done(error)

    def stop(self, error: RemoteError) -> None:
        """Answer all that wait."""
        for stream_id in list(self._waiting):
            self.fail(stream_id, error)

    def expire(self, now_us: int) -> None:
        """Answer the callers whose time is up with what is missing."""
        for stream_id, waiting in list(self._waiting.items()):
            late = [one for one in waiting if one.deadline_us <= now_us]
            if not late:
                continue
            left = [one for one in waiting if one.deadline_us > now_us]
            if left:
                self._waiting[stream_id] = left
            else:
                del self._waiting[stream_id]
            error = self._missing(stream_id)
            for one in late:
                one.done(error)

    def _missing(self, stream_id: StreamId) -> RemoteError:
        if self._keys(stream_id) is None:
            return RemoteError(ErrorCode.TIMED_OUT, _NOT_KNOWN)
        if self._is_opening(stream_id):
            return RemoteError(ErrorCode.TIMED_OUT, _NOT_OPENED)
        return RemoteError(ErrorCode.NATS_UNAVAILABLE, _NOT_CONFIRMED)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `expire` has something to do."""
        if not self._waiting:  # the usual case, and this runs with every batch
            return None
        return min(waiter.deadline_us for waiting in self._waiting.values() for waiter in waiting)
