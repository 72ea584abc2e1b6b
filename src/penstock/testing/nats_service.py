"""The simulated NATS server, as programs reach it."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.nats import NatsServer
from penstock.sim.network import Connection


class NatsService:
    """For `transport`."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.receive = server.receive

    def opened(self, connection: Connection, take: Callable[[bytes], None]) -> None:
        """A program has connected."""
        self._server.greet(connection, take, is_program=True)
