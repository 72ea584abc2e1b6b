"""The simulated NATS server as a service for simulated programs."""

from __future__ import annotations

from collections.abc import Callable

from penstock.sim.nats import NatsServer
from penstock.sim.network import Connection


class NatsService:
    """Adapts the NATS server to `transport.Service`."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self.receive = server.receive

    def opened(self, connection: Connection, take: Callable[[bytes], None]) -> None:
        """Greet a program that has connected."""
        self._server.greet(connection, take, is_program=True)
