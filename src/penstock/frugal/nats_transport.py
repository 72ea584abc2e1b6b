"""Requests over NATS: one subscription for all answers of a client.

A request goes to the service's subject, with the reply subject `<inbox>.<operation id>`; the client is subscribed to
`<inbox>.*`. So answers come in any order, and each finds its call by the last token of its subject.

| what comes                                | then                                                        |
|-------------------------------------------|-------------------------------------------------------------|
| an answer to a call that waits            | the call has it                                             |
| status 503, or nothing in it              | `ServiceNotAvailable`: no server listens on the subject     |
| an answer to a call that is over          | dropped, and counted in `late_answers`                      |
| the ack of a stream that stores requests  | dropped, with one warning: the answer comes, too            |
| another subject                           | dropped, and counted in `stray_messages`                    |
| nothing                                   | `DeadlineExceeded`, also while NATS is not connected        |
| the end of the transport                  | `TransportClosed`                                           |

Rules: nats-py reconnects; requests of that time wait in its buffer until their deadline. Answers that NATS loses in
between do not come again. A oneway has the inbox itself as its reply subject, as Frugal's servers want one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import ConnectionClosedError, ConnectionDrainingError, MaxPayloadError, OutboundBufferLimitError
from nats.errors import Error as NatsError

from penstock.base.nats_logins import shown_url
from penstock.base.subjects import subject_mistake
from penstock.client.publish.nats_client import StrictNatsClient
from penstock.client.publish.publishing import ended_by_cancel, give_back
from penstock.frugal.deadlines import Deadlines
from penstock.frugal.errors import (
    DeadlineExceeded,
    Disconnected,
    RequestTooLarge,
    ServiceNotAvailable,
    TooManyCalls,
    TransportClosed,
    TransportError,
)
from penstock.frugal.framing import Packet

IN_FLIGHT_MAX = 10_000
"""Most calls of one client that wait for an answer, unless it says another number."""
FIRST_CONNECT_TIMEOUT_S = 10.0
"""Time for the first connection to NATS, unless it says another one."""
_log = logging.getLogger(__name__)
_JSON = b'{"'
_STATUS = "Status"
_NO_RESPONDERS = "503"


class NatsTransport:
    """Carries the requests of a client to the service on a subject.

    `connection` is one of nats-py, of the running event loop; it is not closed with the transport. `inbox`: what
    reply subjects begin with, as NATS's permissions may ask for; a token of this client alone follows. Default: the
    connection's prefix. ValueError: no subject to send to.
    """

    def __init__(
        self, connection: Client, subject: str, *, inbox: str = "", in_flight_max: int = IN_FLIGHT_MAX
    ) -> None:
        check_subject(subject)
        self.subject = subject
        self.late_answers = 0
        self.stray_messages = 0
        self._stored_by = ""  # the stream that stores requests, if one does
        self._connection = connection
        self._owns_connection = False
        self._inbox = _new_inbox(connection, inbox)
        self._in_flight_max = in_flight_max
        self._last_id = 0
        self._waiting: dict[int, _Waiter] = {}
        self._opening: asyncio.Task[Subscription] | None = None
        self._is_open = False
        self._deadlines = Deadlines()
        self._is_closed = False

    @classmethod
    def connecting(
        cls,
        servers: str | list[str],
        subject: str,
        *,
        in_flight_max: int = IN_FLIGHT_MAX,
        first_connect_timeout_s: float = FIRST_CONNECT_TIMEOUT_S,
        **options: Any,
    ) -> Callable[[], Coroutine[Any, Any, Self]]:
        """Return what connects to NATS and opens a transport, which closes that connection with itself.

        `options` are those of `nats.connect`; without an `error_cb` its errors are warnings of this module's logger, a
        line each. `ServiceNotAvailable`: NATS was not reached in time; nats-py alone would try for minutes.
        """

        async def connect() -> Self:
            failures = _Failures(options.get("error_cb"))
            try:
                async with asyncio.timeout(first_connect_timeout_s):
                    made_up = {**options, "error_cb": failures.note}
                    connection = await ended_by_cancel(_connected(servers, made_up), give_back)
            except TimeoutError:
                named = ", ".join(map(shown_url, [servers] if isinstance(servers, str) else servers))
                text = f"NATS at {named} was not reached in {first_connect_timeout_s:g} s{failures.cause}"
                raise ServiceNotAvailable(text) from None
            failures.is_connected = True
            try:
                made = cls(connection, subject, in_flight_max=in_flight_max)
                await made.open()
            except BaseException:
                await give_back(connection)
                raise
            made._owns_connection = True
            return made

        return connect

    @property
    def request_bytes_max(self) -> int:
        """NATS's most bytes of a message, headers included."""
        return self._connection.max_payload

    @property
    def in_flight(self) -> int:
        """The number of calls that wait for an answer."""
        return len(self._waiting)

    def next_operation_id(self) -> int:
        """Return the next number, from 1 on."""
        self._last_id += 1
        return self._last_id

    async def open(self) -> None:
        """Subscribe to the answers; else the first request does. TransportClosed: this or the connection is closed."""
        self._check_open()
        if self._opening is None or _has_failed(self._opening):
            self._opening = asyncio.ensure_future(self._subscribe())
        await asyncio.shield(self._opening)
        self._is_open = True

    async def _subscribe(self) -> Subscription:
        try:
            return await self._connection.subscribe(f"{self._inbox}.*", cb=self._on_answer)
        except (ConnectionClosedError, ConnectionDrainingError) as error:
            raise TransportClosed(f"the NATS connection takes no subscription: {error}") from error

    async def request(self, operation_id: int, packet: Packet, left_s: float) -> Packet:
        """Send a request and return its answer."""
        if len(self._waiting) >= self._in_flight_max:
            raise TooManyCalls(f"{len(self._waiting):,} calls wait for answers, the most of this client")
        waiter = _Waiter(loop=asyncio.get_running_loop())
        waiter.transport = self
        self._waiting[operation_id] = waiter
        self._deadlines.add(waiter, left_s)
        try:
            if not self._is_open:
                await asyncio.wait_for(self.open(), left_s)
            await self._publish(packet, f"{self._inbox}.{operation_id}")
            return await waiter
        except TimeoutError as error:
            if isinstance(error, TransportError):
                raise
            raise DeadlineExceeded(f"NATS did not take the subscription of {self.subject!r} in time") from None
        finally:
            self._deadlines.discard(waiter)
            self._waiting.pop(operation_id, None)
            if not waiter.cancel() and not waiter.cancelled():
                waiter.exception()  # else asyncio complains that the error was never retrieved

    async def send(self, packet: Packet, left_s: float) -> None:
        """Send a oneway. It is on its way to NATS, or in nats-py's buffer, when this returns."""
        await self._publish(packet, self._inbox)

    async def _publish(self, packet: Packet, reply: str) -> None:
        self._check_open()
        try:
            headers = dict(packet.headers) if packet.headers else None
            await self._connection.publish(self.subject, packet.data, reply=reply, headers=headers)
        except (ConnectionClosedError, ConnectionDrainingError) as error:
            raise TransportClosed(f"the NATS connection takes no more messages: {error}") from error
        except OutboundBufferLimitError as error:
            raise Disconnected(f"NATS is not connected, and nats-py's buffer for that time is full: {error}") from error
        except MaxPayloadError as error:
            raise RequestTooLarge(f"NATS takes no message of {packet.size:,} bytes") from error
        except NatsError as error:
            raise TransportError(f"nats-py did not take the request: {error!r}") from error

    def _check_open(self) -> None:
        if self._is_closed:
            raise TransportClosed(f"the client of {self.subject!r} is closed")
        if self._connection.is_closed:
            raise TransportClosed("the NATS connection is closed")

    def over(self) -> TransportError:
        """Return the error of a call whose time is over."""
        if self._connection.is_closed:
            return TransportClosed("the NATS connection was closed before the answer came", may_be_done=True)
        text = f"no answer came from {self.subject!r} in the time of the call"
        stored = f"; its requests are stored by the stream {self._stored_by!r}" if self._stored_by else ""
        return DeadlineExceeded(text + stored)

    def _note_ack(self, stream: str) -> None:
        """Take the ack of a stream, which is no answer: a stream should not store requests."""
        if not self._stored_by:
            _log.warning("the stream %r stores requests to %r: give services a subject that no stream stores",
                         stream, self.subject)  # fmt: skip
        self._stored_by = stream

    async def _on_answer(self, message: Msg) -> None:
        token = message.subject[len(self._inbox) + 1 :]
        if not (token.isascii() and token.isdigit() and len(token) <= 20):
            self.stray_messages += 1
            return
        waiter = self._waiting.get(int(token))
        if waiter is None or waiter.done():
            self.late_answers += 1
            return
        headers = message.headers or {}
        if not headers and message.data.startswith(_JSON) and (stream := _stream_of_ack(message.data)) is not None:
            self._note_ack(stream)
            return
        if headers.get(_STATUS) == _NO_RESPONDERS or not (message.data or headers):
            waiter.set_exception(ServiceNotAvailable(f"no server is subscribed to {self.subject!r}"))
        else:
            waiter.set_result(Packet(message.data, headers))

    async def close(self) -> None:
        """End the subscription; calls that wait fail with `TransportClosed`. May be called again."""
        if self._is_closed:
            return
        self._is_closed = True
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(TransportClosed("the client was closed before the answer came", may_be_done=True))
        if self._owns_connection:
            await self._connection.close()
        elif self._opening is not None:
            try:
                subscription = await self._opening
                await subscription.unsubscribe()
            except (TransportError, NatsError):
                return


class _Failures:
    """Errors of a connection: the last one before it is made is told with its failure, later ones are logged."""

    def __init__(self, error_cb: Callable[[Exception], Awaitable[None]] | None) -> None:
        self.is_connected = False
        self._error_cb = error_cb
        self._last: Exception | None = None

    @property
    def cause(self) -> str:
        """The last error, as the end of a sentence; "" if there was none."""
        return "" if self._last is None else f": {_text(self._last)}"

    async def note(self, error: Exception) -> None:
        """Take an error, as nats-py's `error_cb`."""
        self._last = error
        if self._error_cb is not None:
            await self._error_cb(error)
        elif self.is_connected:
            _log.warning("NATS: %s", _text(error))


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__


class _Waiter(asyncio.Future[Packet]):
    """The answer of a call: when the time of the call is over, it fails."""

    __slots__ = ("transport",)
    transport: NatsTransport

    def expire(self) -> None:
        if not self.done():
            self.set_exception(self.transport.over())


async def _connected(servers: str | list[str], options: Mapping[str, Any]) -> StrictNatsClient:
    """Connect to NATS. An attempt that fails or is cancelled leaves no socket, as that of `nats.connect` would."""
    connection = StrictNatsClient()
    try:
        await connection.connect(servers, **options)
    except BaseException:
        await give_back(connection)
        raise
    return connection


def _stream_of_ack(data: bytes) -> str | None:
    """Return the stream whose ack a message is, of Penstock's or JetStream's; None: it is none."""
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
    return found["stream"] if isinstance(found, dict) and isinstance(found.get("stream"), str) else None


def _new_inbox(connection: Client, prefix: str) -> str:
    """Return a subject for answers that no other client has: two clients may be given the same prefix."""
    inbox = connection.new_inbox()
    return f"{prefix}.{inbox.rpartition('.')[2]}" if prefix else inbox


def _has_failed(task: asyncio.Task[Subscription]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


def check_subject(subject: str) -> None:
    """Raise ValueError unless a message can be sent to this subject."""
    if (mistake := subject_mistake(subject)) is not None:
        raise ValueError(mistake)
