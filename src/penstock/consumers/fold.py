"""From the last row of each key to the consumers of a partition."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.consumers.state import ConsumerState


class StoredConsumer:
    """A consumer as its rows say; `take_over` makes a state of it."""

    __slots__ = ("consumer_id", "told")

    consumer_id: bytes
    told: bytes

    def take_over(self, now_us: int, log_end: int) -> ConsumerState:
        """Go on as its leader: what is in hand stays in hand with the time left; positions beyond the end go back."""
        raise NotImplementedError


def stored_consumers(rows: Mapping[bytes, bytes]) -> dict[bytes, StoredConsumer]:
    """Return the consumers by id. CorruptionError: a row is malformed, or rows are missing."""
    raise NotImplementedError
