"""Deliveries of readers over the leaf link."""

from __future__ import annotations

from penstock.broker.nats.leaf_link import LeafLink
from penstock.broker.nats.reconnecting import now_ms
from penstock.node.step import Outbox


class LeafDeliveries:
    """See `penstock.jetstream.readers.deliveries.Deliveries`. Without a leaf link nothing is delivered."""

    def __init__(self, leaf: LeafLink | None, outbox: Outbox) -> None:
        self._leaf = leaf
        self._outbox = outbox

    @property
    def is_up(self) -> bool:
        return self._leaf is not None and self._leaf.is_up

    @property
    def is_writable(self) -> bool:
        return self._leaf is not None and self._leaf.is_writable

    def has_interest(self, subject: bytes, queue: bytes = b"") -> bool | None:
        return None if self._leaf is None else self._leaf.interest.has_interest(subject, queue)

    def groups(self, subject: bytes) -> bytes:
        return b"" if self._leaf is None else self._leaf.interest.groups(subject)

    def regrouped(self) -> list[bytes] | None:
        return [] if self._leaf is None else self._leaf.interest.regrouped()

    def watch(self, subject: bytes) -> None:
        if self._leaf is not None:
            self._leaf.interest.watch(subject, now_ms())

    def unwatch(self, subject: bytes) -> None:
        if self._leaf is not None:
            self._leaf.interest.unwatch(subject)

    def ask_interest(self) -> bool:
        return self._leaf is not None and self._leaf.ask_interest()

    def mistake(self, subject: bytes, size_bytes: int = 0) -> str | None:
        return "there is no leaf connection" if self._leaf is None else self._leaf.mistake(subject, size_bytes)

    def deliver(self, frames: bytes | bytearray) -> None:
        self._outbox.step.deliver.append(frames)
