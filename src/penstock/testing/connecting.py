"""Connections of simulated programs: resolve addresses to machines, and fail as a real network does.

Rules: a machine's name is its host name; the port does not matter. `localhost` is NATS at port 4222 and the first
broker at port 7422. A connection established after its caller gave up is closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from penstock.client.link.addresses import DEFAULT_PORT
from penstock.testing.loop import Loop
from penstock.testing.simulation import nats
from penstock.testing.simulation.network import CONNECT_TIMEOUT_US, Network, SimConnection
from penstock.testing.simulation.trace import Trace
from penstock.testing.transport import Service, Transport

_NATS_PORT = 4222
_HERE = ("localhost", "127.0.0.1", "::1")


class ProgramPlace:
    """The environment that all programs share."""

    def __init__(
        self,
        network: Network,
        trace: Trace,
        random: Random,
        services: Mapping[str, Service],
        failed: Callable[[BaseException], None],
    ) -> None:
        """`services`: by machine name; `failed` is called with an error that ends the test."""
        self.network = network
        self.trace = trace
        self.random = random
        self.services = services
        self.failed = failed


class ClientConnector:
    """Makes the connections of one program."""

    def __init__(self, place: ProgramPlace, name: str) -> None:
        self._place = place
        self._name = name

    async def connect(self, make: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Connect to a simulated machine. ConnectionRefusedError, TimeoutError, gaierror."""
        place, loop = self._place, asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        target = machine_at(host, port, place.services)
        began_us = place.network.scheduler.now_us
        made: asyncio.Future[tuple[Any, Any]] = loop.create_future()
        transports: list[Transport] = []

        def done(connection: SimConnection | None) -> None:
            if loop.is_closed() or made.done():
                if connection is not None:
                    connection.close(by_source=True)
            elif connection is None:
                is_late = place.network.scheduler.now_us - began_us >= CONNECT_TIMEOUT_US
                made.set_exception(_not_connected(host, port, is_late=is_late))
            else:
                loop.call_soon(opened, connection)

        def opened(connection: SimConnection) -> None:
            if made.done():  # the caller has given up meanwhile
                connection.close(by_source=True)
                return
            protocol = make()
            transport = Transport(loop, place.services[target], protocol, (host, port), place.random)
            transports.append(transport)
            transport.begin(connection)
            made.set_result((transport, protocol))
            if not connection.is_open:
                transport.lost()

        def lost() -> None:
            for transport in transports:
                transport.lost()

        place.network.connect(self._name, target, done, lost)
        return await made


def machine_at(host: str, port: int, machines: Mapping[str, object]) -> str:
    """Return the machine that an address means. gaierror."""
    if host in machines:
        return host
    if host in _HERE and port in (_NATS_PORT, DEFAULT_PORT):
        return nats.NAME if port == _NATS_PORT else next(name for name in machines if name != nats.NAME)
    text = f"there is no simulated machine {host!r} with port {port}; there are {', '.join(machines)}"
    raise socket.gaierror(socket.EAI_NONAME, text)


def _not_connected(host: str, port: int, *, is_late: bool) -> OSError:
    if is_late:
        return TimeoutError(110, f"Connect call timed out: {host}:{port}")
    return ConnectionRefusedError(111, f"Connect call failed: {host}:{port}")
