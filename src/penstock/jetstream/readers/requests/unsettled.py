"""Consumers that are being created or deleted: a request with the name of one waits until that is committed."""

from __future__ import annotations

from collections.abc import Callable

from penstock.base.errors import ErrorCode, RemoteError
from penstock.jetstream.readers.table import Readers


class UnsettledConsumers:
    """Knows which consumers are being created or deleted."""

    def __init__(self, readers: Readers) -> None:
        self._readers = readers
        self.creating: set[tuple[int, str]] = set()  # streams and names of consumers

    def is_changing(self, place: tuple[int, str]) -> bool:
        """True if a consumer with this name is being created or deleted."""
        feed = self._readers.feed_of_id(place[0])
        reader = None if feed is None else feed.readers.get(place[1])
        is_ending = reader is not None and reader.led is not None and reader.led.is_deleted
        return bool(place[1]) and (place in self.creating or is_ending)

    def when_settled(self, place: tuple[int, str], told: Callable[[RemoteError | None], None]) -> None:
        """Go on once no consumer with this name is being created or deleted: clients may ask for it at once."""
        if self.is_changing(place):
            raise RemoteError(ErrorCode.NOT_YET, "a consumer with this name is being created or deleted")
        told(None)
