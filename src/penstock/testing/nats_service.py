"""The simulated NATS server as a service for simulated programs."""

from __future__ import annotations

from collections.abc import Callable

from penstock.testing.simulation.nats import NatsServerModel
from penstock.testing.simulation.network import SimConnection


class NatsService:
    """Adapts the NATS server to `transport.Service`."""

    def __init__(self, server: NatsServerModel) -> None:
        self._server = server
        self.receive = server.receive

    def opened(self, connection: SimConnection, take: Callable[[bytes], None]) -> None:
        """Greet a program that has connected."""
        self._server.greet(connection, take, is_program=True)
