"""Sends a join request to a broker of which only the address is known.

Rules: one connection for one request, with the same identification as any other between brokers; it is closed after the
answer. The caller bounds the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.peers.peer_connection import PeerConnection, dialling_mistake
from penstock.broker.security.authentication import BrokerAuthenticator
from penstock.messages import JoinRequest, JoinResponse, PeerHelloRequest, Response
from penstock.node.step import PeerRequest

NOBODY_YET = BrokerId(0)
_TOKEN = 1


class JoinRefusedError(OperationalError):
    """The broker there belongs to another cluster, or reports that another broker uses our id."""

    def __init__(self, reason: str, refusal: RemoteError) -> None:
        super().__init__(reason)
        self.refusal = refusal


class JoinTimings(Protocol):
    """The caller of `ask_to_join`."""

    hello: PeerHelloRequest
    guarding: BrokerAuthenticator | None

    dialling: Callable[[str], dict[str, Any]]
    """Returns the extra arguments of `create_connection` for a host, such as TLS."""

    def elapsed_us(self) -> int:
        """Return the elapsed time."""

    @property
    def answer_timeout_s(self) -> float:
        """Time-out of the whole exchange."""


class _Attempt:
    """One connection with one request."""

    def __init__(self, request: JoinRequest, asking: JoinTimings) -> None:
        self._loop = asyncio.get_running_loop()
        self.said: asyncio.Future[JoinResponse] = self._loop.create_future()
        self.connection = PeerConnection(None, asking.hello, self, asking.elapsed_us, asking.guarding)
        self._request = request

    # PeerCalls

    def up(self, cluster_id: str) -> None:
        """Send the request once this call has returned."""
        self._loop.call_soon(self.connection.send, PeerRequest(NOBODY_YET, _TOKEN, self._request, b""))

    def answered(self, token: int, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        if self.said.done():
            return
        if isinstance(response, RemoteError):
            self.said.set_exception(OperationalError(f"it does not let us join: {response}"))
        else:
            assert isinstance(response, JoinResponse)
            self.said.set_result(response)

    def receiving(self, size_bytes: int) -> None:
        pass

    def ended(self) -> None:
        if not self.said.done():
            reason, refusal = self.connection.end_reason, self.connection.refusal
            self.said.set_exception(OperationalError(reason) if refusal is None else JoinRefusedError(reason, refusal))


async def ask_to_join(address: Address, request: JoinRequest, asking: JoinTimings) -> JoinResponse:
    """Return a broker's answer to the join request; raise OperationalError if there is none."""
    attempt = _Attempt(request, asking)
    try:
        async with asyncio.timeout(asking.answer_timeout_s):
            loop = asyncio.get_running_loop()
            options = asking.dialling(address.host)
            await loop.create_connection(lambda: attempt.connection, address.host, address.port, **options)
            return await attempt.said
    except TimeoutError:
        raise OperationalError(f"no answer within {asking.answer_timeout_s:g} s") from None
    except OSError as error:
        raise OperationalError(f"no connection: {dialling_mistake(error)}") from error
    finally:
        if not attempt.said.done():
            attempt.said.cancel()
        attempt.connection.end("answered")
