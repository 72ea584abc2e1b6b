"""What readers use to deliver: the leaf connection to nats-server, as far as they see it."""

from __future__ import annotations

from typing import Protocol


class Deliveries(Protocol):
    """Delivers frames. `pending_bytes` are those that nats-server has not taken yet."""

    @property
    def is_up(self) -> bool:
        """False: what is delivered now is lost."""

    @property
    def pending_bytes(self) -> int: ...

    def has_interest(self, subject: bytes) -> bool | None:
        """True if somebody subscribes to it; None: unknown."""

    def mistake(self, subject: str, size_bytes: int = 0) -> str | None:
        """Return why nothing may be delivered there, or None."""

    def deliver(self, frames: bytes | bytearray) -> None:
        """Deliver whole frames with the present step."""
