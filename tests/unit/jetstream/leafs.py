"""A leaf connection that keeps what is delivered."""

from __future__ import annotations


class FakeLeaf:
    """Takes deliveries, and knows who is interested: everybody, but for `deserted`."""

    def __init__(self) -> None:
        self.is_up = True
        self.is_writable = True
        self.deserted: set[bytes] = set()
        self.watched: set[bytes] = set()
        self.frames: list[bytes] = []

    def has_interest(self, subject: bytes, queue: bytes = b"") -> bool | None:
        return subject not in self.deserted

    def watch(self, subject: bytes) -> None:
        self.watched.add(subject)

    def unwatch(self, subject: bytes) -> None:
        self.watched.discard(subject)

    def mistake(self, subject: bytes, size_bytes: int = 0) -> str | None:
        return "it is not allowed" if subject.startswith(b"forbidden.") else None

    def deliver(self, frames: bytes | bytearray) -> None:
        assert self.is_up
        self.frames.append(bytes(frames))
