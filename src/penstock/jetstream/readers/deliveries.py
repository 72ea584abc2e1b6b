"""The leaf connection to nats-server, as readers use it."""

from __future__ import annotations

from typing import Protocol


class Deliveries(Protocol):
    """Delivers frames."""

    @property
    def is_up(self) -> bool:
        """False: what is delivered now is lost."""

    @property
    def is_writable(self) -> bool:
        """False: nats-server takes less than is delivered, and readers should wait."""

    def has_interest(self, subject: bytes, queue: bytes = b"") -> bool | None:
        """True if a client subscribes to it, in that queue group if one is given; None: unknown."""

    def groups(self, subject: bytes) -> bytes:
        """Return the queue groups that subscribe to it, separated by spaces: nats-server delivers what comes over a
        leaf connection to those only that its frame names.
        """

    def regrouped(self) -> list[bytes] | None:
        """Return the subjects, perhaps with wildcards, whose queue groups have changed since the last call; None:
        those of any may have.
        """

    def watch(self, subject: bytes) -> None:
        """Have the gateway told once the subject has no subscriber any more."""

    def unwatch(self, subject: bytes) -> None: ...

    def ask_interest(self) -> bool:
        """Have the gateway told (`interest_known`) once all is known here that nats-server knows now of the interest,
        or the connection is lost. False: it is not told, as there is no connection. Call it again only then.
        """

    def mistake(self, subject: bytes, size_bytes: int = 0) -> str | None:
        """Return why nothing may be delivered there, or None."""

    def deliver(self, frames: bytes | bytearray) -> None:
        """Deliver whole frames with the present step."""
