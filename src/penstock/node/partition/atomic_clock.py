"""Expiry of the atomic batches of a broker: those of each stream that were not committed in time are abandoned."""

from __future__ import annotations

from typing import Protocol

from penstock.base.clock import Now
from penstock.ingest.atomic_batches import OpenBatches
from penstock.node.step import Step


class Expiring(Protocol):
    """The batches of one stream."""

    @property
    def next_deadline_us(self) -> int | None:
        """Elapsed time at which the first batch expires; None if there is none."""

    def expire(self, now: Now, step: Step) -> None:
        """Abandon the batches that have expired."""


class AtomicClock:
    """The streams with batches, and how many batches they have together."""

    def __init__(self) -> None:
        self.open = OpenBatches()
        self._streams: dict[Expiring, None] = {}
        self.next_deadline_us: int | None = None
        """Elapsed time before which no batch expires; None if there is none."""

    def watch(self, stream: Expiring) -> None:
        """Note that a message of a batch came."""
        self._streams[stream] = None
        self._note(stream)

    def forget(self, stream: Expiring) -> None:
        """Note that a stream has no batches any more."""
        self._streams.pop(stream, None)

    def tick(self, now: Now, step: Step) -> None:
        """Abandon what has expired."""
        if self.next_deadline_us is None or now.elapsed_us < self.next_deadline_us:
            return
        streams, self._streams, self.next_deadline_us = self._streams, {}, None
        for stream in streams:
            stream.expire(now, step)
            if stream.next_deadline_us is not None:
                self.watch(stream)

    def _note(self, stream: Expiring) -> None:
        due_us = stream.next_deadline_us
        if due_us is not None and (self.next_deadline_us is None or due_us < self.next_deadline_us):
            self.next_deadline_us = due_us
