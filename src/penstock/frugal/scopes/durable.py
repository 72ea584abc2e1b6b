"""Interface of the source of a durable subscription, and of its messages: `DurableSource`, `Delivery`.

Rules: each delivery that a source gives out ends with exactly one of `handled`, `failed` and `abandoned`. The source
decides what follows: a commit, a retry, a dead letter. So today's consumer groups, whose retries happen in the
subscriber (`GroupSource`), and consumers whose broker redelivers can stand for each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.client.values import Message


@dataclass(frozen=True, slots=True)
class Delivery:
    """A stored message that is given to a handler. `deliveries`: how often it was, this time included.

    `receipt` is the source's own.
    """

    stream: str
    message: Message
    deliveries: int
    receipt: Any = None


class DurableSource(Protocol):
    """Gives out the messages of a stream to several handlers at once, and learns how each of them ended."""

    async def open(self) -> None:
        """Begin to read. Raises what the brokers refuse."""

    async def next(self) -> Delivery | None:
        """Wait for the next message; None: the source has ended. Raises what ended it, if something went wrong."""

    def handled(self, delivery: Delivery) -> None:
        """The handler has returned: the message may be committed."""

    def failed(self, delivery: Delivery, reason: str, *, is_final: bool = False) -> None:
        """The handler has raised; `is_final`: another attempt would, too, so the message is a dead letter."""

    def abandoned(self, delivery: Delivery) -> None:
        """The handler was cancelled, because the subscription stops: the message comes again to its next reader."""

    async def drain(self) -> None:
        """Give out nothing more; return once all handlers have ended and what they did is committed."""

    async def close(self) -> None:
        """Stop at once. May be called twice."""

    @property
    def counts(self) -> Mapping[str, int]:
        """Counters so far, by name."""
