"""A lasting link to one broker: connects, and connects again, for as long as its callers have time.

Rules: a request that does nothing twice is repeated when its connection breaks, until its time-out; any other fails
with `OutcomeUnknown` once the broker may have seen it. A broker that answers `stopping` has done nothing, so that any
request is repeated. Waiting times between attempts grow up to a limit and are spread at random, so that many clients do
not return at the same moment.
"""

from __future__ import annotations

import asyncio
import random
from typing import TypeVar, cast

from penstock.base.errors import ErrorCode, RemoteError
from penstock.client.connection import Connection, ConnectionLost, Raw, open_connection, parse_server
from penstock.client.errors import OutcomeUnknown, TimedOut, Unavailable
from penstock.client.session import Session
from penstock.messages import API_OF_REQUEST, HelloResponse, Request, Response

_BACKOFF_S_MIN = 0.05
_BACKOFF_S_MAX = 2.0
_ATTEMPT_S_MAX = 10.0  # for one connection and its hello; a caller with more time tries again

R = TypeVar("R", bound=Response)


class Link:
    """See the module. `await link.connect(…)` first."""

    def __init__(self, server: str, name: str, version: str, *, rng: random.Random | None = None) -> None:
        parse_server(server)
        self.server = server
        self._name = name
        self._version = version
        self._rng = rng or random.Random()  # noqa: S311 (spreads waiting times, keeps no secret)
        self._connection: Connection | None = None
        self._hello: HelloResponse | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    @property
    def hello(self) -> HelloResponse:
        """What the broker said last about itself."""
        assert self._hello is not None, "connect first"
        return self._hello

    async def connect(self, timeout_s: float) -> None:
        """The first connection: one attempt, so that a wrong address is reported at once."""
        async with self._connecting:
            await self._open(asyncio.get_running_loop().time() + timeout_s)

    async def refresh(self, timeout_s: float) -> None:
        """Have a connection, so that `hello` is what the broker says now. Unavailable, TimedOut."""
        await self._connected(asyncio.get_running_loop().time() + timeout_s)

    async def call(
        self, request: Request, response_type: type[R], *, timeout_s: float, raw: Raw = b""
    ) -> tuple[R, bytes | memoryview]:
        """The answer and its raw part.

        RemoteError: refused, or TimedOut. Unavailable: no broker to be reached in time. OutcomeUnknown: see the module.
        """
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        spec = API_OF_REQUEST[type(request)]
        assert spec.response is response_type, (spec.response, response_type)
        attempt = 0
        while True:
            connection = await self._connected(deadline_s)
            try:
                return cast("tuple[R, bytes | memoryview]", await connection.call(request, raw, deadline_s))
            except ConnectionLost as error:
                self._check_open()
                if error.sent and not spec.repeatable:
                    name = spec.api.name.lower()
                    raise OutcomeUnknown(f"the outcome of the {name} is unknown: {error}") from None
            except RemoteError as error:
                if error.code != ErrorCode.STOPPING:
                    raise
            if attempt:  # the first repetition goes out at once: most connections break for a reason that has passed
                await self._back_off(attempt, deadline_s)
            attempt += 1

    async def close(self) -> None:
        """End the connection; calls in flight fail."""
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
            await connection.wait_closed()

    async def _connected(self, deadline_s: float) -> Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._connecting.acquire()
        except TimeoutError:
            raise TimedOut(f"no connection to the broker at {self.server} within the time-out") from None
        try:
            attempt = 0
            while self._connection is None or not self._connection.is_open:
                try:
                    await self._open(min(deadline_s, asyncio.get_running_loop().time() + _ATTEMPT_S_MAX))
                except (Unavailable, TimedOut):
                    self._check_open()
                    attempt += 1
                    if not await self._back_off_unless_late(attempt, deadline_s):
                        raise
            return self._connection
        finally:
            self._connecting.release()

    async def _open(self, deadline_s: float) -> None:
        self._check_open()
        session = Session(self._name, self._version)
        connection, hello = await open_connection(self.server, session, deadline_s)
        try:
            self._check_open()
        except Unavailable:
            connection.close()
            raise
        self._connection, self._hello = connection, hello

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("the client is closed")

    async def _back_off(self, attempt: int, deadline_s: float) -> None:
        if not await self._back_off_unless_late(attempt, deadline_s):
            raise TimedOut(f"the broker at {self.server} did not answer within the time-out")

    async def _back_off_unless_late(self, attempt: int, deadline_s: float) -> bool:
        pause_s = min(_BACKOFF_S_MAX, _BACKOFF_S_MIN * 2 ** min(attempt - 1, 10)) * self._rng.uniform(0.5, 1.0)
        if asyncio.get_running_loop().time() + pause_s >= deadline_s:
            return False
        await asyncio.sleep(pause_s)
        return True
