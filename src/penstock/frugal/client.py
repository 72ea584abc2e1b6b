"""Clients of services: what the client classes of generated code are built on, for asyncio and for threads.

    arguments ── middleware ── encode ── transport ══ service ══ transport ── decode ── middleware ── result

Rules: a call has one context and its deadline; what is left of it travels with the request. Calls of one client run at
the same time over one transport, and a slow answer holds up no other. A declared exception is raised as itself, any
other failure as one of `errors`. A cancelled call is forgotten here; the service does not learn of it, since frugal-v0
has no form for it. Nothing is retried here: that is a middleware's, and needs to know that the method is idempotent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Protocol, Self

from penstock.client.blocking.threads import LoopThread
from penstock.client.errors import ClientClosed
from penstock.frugal.codecs import BINARY, Codec
from penstock.frugal.context import Context
from penstock.frugal.contracts import MethodType, ServiceType
from penstock.frugal.errors import (
    ApplicationError,
    CodecError,
    DeadlineExceeded,
    FrameError,
    MissingResult,
    RequestTooLarge,
    TransportClosed,
)
from penstock.frugal.framing import Packet
from penstock.frugal.middleware import Call, Middleware, Proceed, Side, chain
from penstock.frugal.native import FRAMINGS
from penstock.frugal.processor import argument_names


class RpcTransport(Protocol):
    """Carrier of the requests of a client to one service, for many calls at a time.

    `subject`: the service's subject or URL. `request_bytes_max`: the most of a request's `Packet.size`.
    """

    @property
    def subject(self) -> str: ...

    @property
    def request_bytes_max(self) -> int: ...

    def next_operation_id(self) -> int:
        """Return a number that no other request of this transport has."""

    async def request(self, operation_id: int, packet: Packet, left_s: float) -> Packet:
        """Send a request and return its answer. TransportError: none came."""

    async def send(self, packet: Packet, left_s: float) -> None:
        """Send a oneway."""

    async def close(self) -> None:
        """Fail the calls that are under way, and give back what the transport holds."""


class ServiceClient:
    """Base of the clients in generated code.

    `transport` carries the requests; closing the client closes it. `service`: for middleware, the name of the service;
    generated classes say it in `_service`.
    `middleware`: the first is the outermost. `framing`: "frugal-v0" or "native". `now`: the monotonic clock, seconds.
    """

    _service: ClassVar[ServiceType | None] = None

    def __init__(
        self,
        transport: RpcTransport,
        service: ServiceType | None = None,
        *,
        codec: Codec = BINARY,
        middleware: Sequence[Middleware] = (),
        framing: str = "frugal-v0",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        if framing not in FRAMINGS:
            raise ValueError(f"framing is {framing!r}; give one of {', '.join(FRAMINGS)}")
        self._transport = transport
        named = service or self._service
        self._service_name = named.name if named is not None else transport.subject
        self._codec = codec
        self._middleware = tuple(middleware)
        self._framing = FRAMINGS[framing]
        self._now = now
        self._names: dict[str, tuple[str, ...]] = {}  # of the arguments, by the name of the method
        self._chains: dict[str, Proceed] = {}  # of the middleware, by the name of the method

    async def close(self) -> None:
        """Close the transport: calls that are under way fail with `TransportClosed`."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, method: MethodType, ctx: Context, arguments: tuple[Any, ...]) -> Any:
        """Call a method; the arguments are in the order of the contract. Returns the result, None if it has none."""
        ctx.begin(self._now)
        if not self._middleware:
            return await self._request(method, ctx, arguments)
        proceed = self._chains.get(method.name)
        if proceed is None:
            proceed = self._chains[method.name] = self._make_chain(method)
        call = Call(
            Side.CLIENT,
            self._service_name,
            method.name,
            arguments,
            subject=self._transport.subject,
            is_oneway=method.is_oneway,
            is_idempotent=method.is_idempotent,
            annotations=method.annotations,
        )
        return await proceed(ctx, call)

    def _make_chain(self, method: MethodType) -> Proceed:
        async def proceed(ctx: Context, call: Call) -> Any:
            return await self._request(method, ctx, call.arguments)

        return chain(self._middleware, proceed)

    async def _request(self, method: MethodType, ctx: Context, arguments: tuple[Any, ...]) -> Any:
        now = self._now()
        left_s = ctx.deadline - now
        if left_s <= 0:
            raise DeadlineExceeded(f"the time of the call to {self._name_of(method)} was over before it was sent")
        names = self._names.get(method.name)
        if names is None:
            names = self._names[method.name] = argument_names(method.arguments)
        struct = method.arguments(**dict(zip(names, arguments, strict=True)))
        transport = self._transport
        operation_id = transport.next_operation_id()
        try:
            packet = self._framing.encode_request(self._codec, method, ctx, operation_id, now, struct)
        except CodecError as misfit:
            raise CodecError(f"the request to {self._name_of(method)}: {misfit}") from misfit
        size, most = packet.size, transport.request_bytes_max
        if size > most:
            name = self._name_of(method)
            raise RequestTooLarge(f"the request to {name} has {size:,} bytes, and {most:,} fit into a message")
        if method.result is None:
            await transport.send(packet, left_s)
            return None
        answer = await transport.request(operation_id, packet, left_s)
        try:
            result = self._framing.decode_answer(self._codec, method, ctx, operation_id, answer)
        except ApplicationError as answered:
            answered.correlation_id = ctx.correlation_id
            raise
        except (CodecError, FrameError) as misread:
            misread.args = (f"the answer of {self._name_of(method)}: {misread}",)
            misread.may_be_done = True
            raise
        for field in method.exceptions.values():
            if (error := getattr(result, field)) is not None:
                raise error
        if not method.returns:
            return None
        if result.success is None:
            raise MissingResult(f"the answer of {self._name_of(method)} has neither a result nor an exception")
        return result.success

    def _name_of(self, method: MethodType) -> str:
        return f"{self._service_name}.{method.name}"


class BlockingServiceClient:
    """Base of the blocking clients in generated code: may be used by many threads at a time.

    It has an event loop of its own, in a thread. `connect` opens the transport there: `NatsTransport.connecting(…)` or
    `HttpTransport.connecting(…)`. Middleware runs there, too. A call that is interrupted is cancelled.
    """

    _service: ClassVar[ServiceType | None] = None

    def __init__(
        self,
        connect: Callable[[], Coroutine[Any, Any, RpcTransport]],
        service: ServiceType | None = None,
        *,
        codec: Codec = BINARY,
        middleware: Sequence[Middleware] = (),
        framing: str = "frugal-v0",
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._thread = LoopThread()
        try:
            transport = self._thread.run(connect())
            self._client = ServiceClient(
                transport, service or self._service, codec=codec, middleware=middleware, framing=framing, now=now
            )
        except BaseException:
            self._thread.stop()
            raise
        self._thread.end_with(self, self._client.close)

    def close(self) -> None:
        """Fail the calls that are under way, and end the thread. May be called again."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: MethodType, ctx: Context, arguments: tuple[Any, ...]) -> Any:
        """Call a method, and wait for its result. TransportClosed: this client was closed before, or meanwhile."""
        was_open = self._thread.is_running
        try:
            return self._thread.run(self._client._call(method, ctx, arguments))  # noqa: SLF001
        except ClientClosed:
            if self._thread.is_running:  # it is another client, of a middleware
                raise
            raise TransportClosed("the client of the service is closed", may_be_done=was_open) from None
