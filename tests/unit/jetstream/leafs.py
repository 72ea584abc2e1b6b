"""A leaf connection that keeps what is delivered."""

from __future__ import annotations


class FakeLeaf:
    """Takes deliveries, and knows who is interested: everybody, but for `deserted`.

    `is_asked`: it is to tell the gateway that the interest is known. `is_slow`: the test tells it.
    """

    def __init__(self) -> None:
        self.is_up = True
        self.is_writable = True
        self.deserted: set[bytes] = set()
        self.watched: set[bytes] = set()
        self.frames: list[bytes] = []
        self.groups_of: dict[bytes, bytes] = {}
        self.changes: list[bytes] | None = []
        self.is_asked = False
        self.is_slow = False
        self.asked = 0

    def has_interest(self, subject: bytes, queue: bytes = b"") -> bool | None:
        return subject not in self.deserted

    def groups(self, subject: bytes) -> bytes:
        return self.groups_of.get(subject, b"")

    def regrouped(self) -> list[bytes] | None:
        found, self.changes = self.changes, []
        return found

    def watch(self, subject: bytes) -> None:
        self.watched.add(subject)

    def unwatch(self, subject: bytes) -> None:
        self.watched.discard(subject)

    @property
    def is_due(self) -> bool:
        """True if the gateway is to be told by itself."""
        return self.is_asked and not self.is_slow

    def ask_interest(self) -> bool:
        assert not self.is_asked
        self.is_asked = self.is_up
        self.asked += self.is_up
        return self.is_up

    def mistake(self, subject: bytes, size_bytes: int = 0) -> str | None:
        return "it is not allowed" if subject.startswith(b"forbidden.") else None

    def deliver(self, frames: bytes | bytearray) -> None:
        assert self.is_up
        self.frames.append(bytes(frames))
