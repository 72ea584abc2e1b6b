"""A barrier on a NATS connection of nats-py: what was written before it has reached the server."""

from __future__ import annotations

from typing import Protocol


class Flushing(Protocol):
    """A connection of nats-py, as far as this needs it."""

    async def flush(self) -> None:
        """Send a PING, and wait for its PONG."""


async def reach(connection: Flushing) -> None:
    """Return once the server has all commands given to the connection before, such as subscriptions.

    Raises what nats-py's `flush` does. One `flush` is not enough: nats-py writes its PING past the commands in its
    buffer, which a task of its own writes a moment later. By the time of the first PONG they are written, so the second
    PING follows them.
    """
    await connection.flush()
    await connection.flush()
