"""Who waits until this broker has a stream: knows it, and is subscribed to what it leads of it.

Rules: whoever waits is answered once, whatever comes first: the stream is there and all that this broker leads of it is
subscribed, NATS refuses a part of it, a log cannot be opened, the time is up, the stream is deleted, the broker stops.
Partitions are looked at in their order, and each once: what was confirmed stays so until the connection is lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionKey, StreamId
from penstock.metadata.image import StreamState

_NOT_CONFIRMED = "the stream is there, but NATS has not confirmed its subscription in time; it stores once NATS is back"
_NOT_OPENED = "the stream is there, but the disk has not made its files in time; it stores once they are there"
_NOT_KNOWN = "the stream was made, but this broker has not heard of it in time"

Done = Callable[[RemoteError | None], None]


class Awaited(NamedTuple):
    """What a broker is to have heard of a stream: this change of its intake, and that it has so many partitions."""

    intake_us: int = 0
    partitions: int = 0

    @classmethod
    def of(cls, state: StreamState) -> Awaited:
        """A stream as it is now."""
        return cls(state.intake_us, len(state.partitions))


ANYHOW = Awaited()

WaitFor = Callable[[StreamId, int, Done, Awaited], None]
"""Stream, deadline (elapsed µs), who hears once this broker has it, or why not; and as it was at some time."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """Somebody who waits for a stream."""

    done: Done
    deadline_us: int
    awaited: Awaited
    confirmed: int = 0  # partitions from the first on


class Confirmations:
    """All that wait, by stream. `keys` gives a stream's partitions, None while it is not known; `is_confirmed` says of
    one whether this broker has done its part, `is_opening` whether a disk thread still opens one of its logs,
    `intake_us` when the stream's intake changed last, as this broker has heard.
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

    def wait(self, stream_id: StreamId, deadline_us: int, done: Done, awaited: Awaited = ANYHOW) -> None:
        """`done` hears None once this broker has the stream, or why it has not."""
        self._waiting.setdefault(stream_id, []).append(_Waiter(done, deadline_us, awaited))
        self.look(stream_id)

    def look(self, stream_id: StreamId) -> None:
        """Something has become of the stream: answer whom it has come far enough for."""
        waiting = self._waiting.get(stream_id)
        if waiting is None or (keys := self._keys(stream_id)) is None:  # as nearly always
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
        """The connection to NATS is gone, and every subscription with it."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                waiter.confirmed = 0

    def fail(self, stream_id: StreamId, error: RemoteError) -> None:
        """Tell all that wait for this stream."""
        for waiter in self._waiting.pop(stream_id, ()):
            waiter.done(error)

    def stop(self, error: RemoteError) -> None:
        """Tell all that wait."""
        for stream_id in list(self._waiting):
            self.fail(stream_id, error)

    def expire(self, now_us: int) -> None:
        """Tell those whose time is up what is missing."""
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
        """When `expire` has something to do, at the latest."""
        if not self._waiting:  # as nearly always, and it is asked with every batch
            return None
        return min(waiter.deadline_us for waiting in self._waiting.values() for waiter in waiting)
