"""The server's core: requests in, answers out, by the handlers of services. It knows no network.

    request ── decode ── deadline ── middleware ── handler ── result ── encode ── answer
                  │          │                        │                    │
                  ▼          ▼                        ▼                    ▼
            ProtocolError  Deadline   declared exception: a field of the   ResponseTooLarge
            UnknownMethod  Exceeded   result; another one: InternalError

Rules: a handler is an object with a method for each method of the contract, with its name there (and `_` behind it, if
Python has a word of that name): `async def place(self, ctx, order)`; a plain `def` is called on the event loop. What a
handler raises and the contract does not declare is logged with its traceback, and the caller reads of it only the
correlation id. The time of a request runs from its reception, so time in a queue counts; when it is over the handler is
cancelled. Nothing that comes over the wire raises here, except `FrameError` for what cannot be answered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import CoroutineType
from typing import Any

from penstock.frugal.codecs import BINARY, Codec
from penstock.frugal.context import Context
from penstock.frugal.contracts import MethodType, ServiceType
from penstock.frugal.deadlines import Deadlines
from penstock.frugal.errors import (
    ApplicationError,
    CodecError,
    DeadlineExceeded,
    FrameError,
    FrugalError,
    InternalError,
    ProtocolError,
    ResponseTooLarge,
    UnknownMethod,
)
from penstock.frugal.framing import Packet, Request
from penstock.frugal.middleware import Call, Middleware, Proceed, Side, chain
from penstock.frugal.native import framing_of
from penstock.frugal.steps import rest_of

log = logging.getLogger("penstock.frugal")


@dataclass(slots=True)
class MethodStats:
    """Counters of a method. `busy_s`: the time that its handlers took. Declared exceptions are no errors."""

    requests: int = 0
    errors: int = 0
    busy_s: float = 0.0
    last_error: str = ""


@dataclass(slots=True)
class _Method:
    service: ServiceType
    kind: MethodType
    arguments_of: Callable[[Any], tuple[Any, ...]]
    handler: Callable[..., Any]
    proceed: Proceed | None  # the handler with the middleware around it; None: there is none
    stats: MethodStats

    def __str__(self) -> str:
        return f"{self.service.name}.{self.kind.name}"


class Processor:
    """Answers requests to the methods of services.

    `services`: pairs of a service and its handler. `codec`: of frugal-v0 requests; native ones name theirs. `now`: the
    monotonic clock, in seconds. ValueError: a handler lacks a method, or two services have one of the same name.
    """

    def __init__(
        self,
        services: Sequence[tuple[ServiceType, object]],
        *,
        now: Callable[[], float],
        codec: Codec = BINARY,
        middleware: Sequence[Middleware] = (),
    ) -> None:
        self.codec = codec
        self._now = now
        self._deadlines = Deadlines()
        self._methods: dict[str, _Method] = {}
        for service, handler in services:
            for name, kind in service.methods.items():
                if name in self._methods:
                    both = f"{self._methods[name].service.name} and {service.name}"
                    raise ValueError(f"{both} have a method {name!r}: give each its own subject")
                found = _find_handler(service, handler, name)
                proceed = chain(middleware, _calling(found)) if middleware else None
                arguments = _getter(argument_names(kind.arguments))
                self._methods[name] = _Method(service, kind, arguments, found, proceed, MethodStats())

    @property
    def stats(self) -> Mapping[str, MethodStats]:
        """The counters by the names of the methods."""
        return {name: each.stats for name, each in self._methods.items()}

    def accept(self, packet: Packet) -> Request:
        """Return a request whose time runs from now. FrameError: none that can be answered."""
        request = framing_of(packet).decode_request(self.codec, packet)
        request.ctx.begin(self._now)
        return request

    def is_oneway(self, request: Request) -> bool:
        """Return whether no answer is due."""
        method = self._methods.get(request.method)
        return method is not None and method.kind.is_oneway

    async def answer(self, request: Request, *, bytes_max: int, subject: str = "") -> Packet | None:
        """Return the answer to a request, of `bytes_max` at most; None: it is a oneway."""
        method = self._methods.get(request.method)
        stats = method.stats if method is not None else MethodStats()
        stats.requests += 1
        began = self._now()
        try:
            result = await self._result(request, method, subject)
            packet = None if result is None else request.framing.encode_result(request, result)
            if packet is not None and packet.size > bytes_max:
                raise ResponseTooLarge(f"the answer has {packet.size:,} bytes, and {bytes_max:,} fit into a message")
        except (CodecError, FrameError) as error:
            log.error("the answer of %s cannot be encoded, correlation id %s: %s", *_what(request), error)
            packet = self._refusal(request, stats, _internal(request), bytes_max)
        except FrugalError as error:
            packet = self._refusal(request, stats, error, bytes_max)
        finally:
            stats.busy_s += self._now() - began
        return packet

    def refuse(self, request: Request, error: FrugalError, *, bytes_max: int) -> Packet | None:
        """Return the answer that a request is not processed; None: it is a oneway."""
        method = self._methods.get(request.method)
        stats = method.stats if method is not None else MethodStats()
        stats.requests += 1
        return self._refusal(request, stats, error, bytes_max)

    def _refusal(self, request: Request, stats: MethodStats, error: FrugalError, bytes_max: int) -> Packet | None:
        stats.errors += 1
        stats.last_error = f"{type(error).__name__}: {error}"
        if self.is_oneway(request):
            return None
        try:
            packet = request.framing.encode_error(request, error)
            if packet.size <= bytes_max:
                return packet
        except (CodecError, FrameError):
            pass  # a header that the handler has set: it may be why it failed
        return request.framing.encode_error(request, error, with_headers=False)

    async def _result(self, request: Request, method: _Method | None, subject: str) -> Any:
        """Return the struct of the result; None: it is a oneway. FrugalError: what is answered instead."""
        if request.problem is not None:
            raise _as_answered(request.problem)
        if method is None:
            raise UnknownMethod(f"there is no method {request.method!r}")
        kind = method.kind
        try:
            arguments = request.decode_arguments(kind.arguments)
        except CodecError as error:
            raise ProtocolError(f"the arguments of {method} cannot be read: {error}") from None
        try:
            running = self._begin(method, request.ctx, arguments, subject)
            if type(running) is CoroutineType:
                try:
                    waits_for = running.send(None)
                except StopIteration as end:
                    value = end.value
                else:
                    value = await self._within_time(method, request.ctx, rest_of(running, waits_for))
            else:
                value = running
        except Exception as error:
            if self._is_answer(error, request.ctx):
                raise
            field = _declared(kind, error)
            if field is None or kind.result is None:
                log.exception("%s failed, correlation id %s", *_what(request))
                raise _internal(request) from None
            return kind.result(**{field: error})
        if kind.result is None:
            return None
        if not kind.returns:
            return kind.result()
        if value is None:
            log.error("%s returned None, and its contract says a value; correlation id %s", *_what(request))
            raise _internal(request)
        return kind.result(success=value)

    def _is_answer(self, error: Exception, ctx: Context) -> bool:
        """Return whether an error is meant for the caller, not one of a call that the handler made."""
        if isinstance(error, DeadlineExceeded):
            return isinstance(error, _OverAtService) or self._now() >= ctx.deadline
        return isinstance(error, ApplicationError) and not error.was_answered

    def _begin(self, method: _Method, ctx: Context, struct: Any, subject: str) -> Any:
        """Call the handler; return what it returns, or a coroutine of that. _OverAtService: the time is over."""
        if ctx.deadline <= self._now():
            raise _too_late(method)
        arguments = method.arguments_of(struct)
        if method.proceed is not None:
            return _awaiting(method.proceed(ctx, _call_of(method, arguments, subject)))
        running = method.handler(ctx, *arguments)
        if type(running) is CoroutineType or not inspect.isawaitable(running):
            return running
        return _awaiting(running)

    async def _within_time(self, method: _Method, ctx: Context, rest: Awaitable[Any]) -> Any:
        """Return what a handler that waits returns in the end. _OverAtService: the time of the request is over."""
        task = asyncio.current_task()
        assert task is not None
        limit = _Limit(task)
        self._deadlines.add(limit, ctx.deadline - self._now())
        try:
            return await rest
        except asyncio.CancelledError:
            if limit.is_over and limit.is_alone():
                raise _too_late(method) from None
            raise
        finally:
            self._deadlines.discard(limit)
            if limit.is_over:
                task.uncancel()


async def _awaiting(what: Awaitable[Any]) -> Any:
    return await what


class _Limit:
    """The time of a handler: when it is over, the task is cancelled. As `asyncio.timeout`, with a shared timer."""

    __slots__ = ("_cancelling", "_task", "is_over")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task
        self._cancelling = task.cancelling()
        self.is_over = False

    def expire(self) -> None:
        self.is_over = True
        self._task.cancel()

    def is_alone(self) -> bool:
        """True if nothing else has cancelled the task meanwhile."""
        return self._task.cancelling() - 1 <= self._cancelling


def _call_of(method: _Method, arguments: tuple[Any, ...], subject: str) -> Call:
    return Call(
        Side.SERVER,
        method.service.name,
        method.kind.name,
        arguments,
        subject=subject,
        is_oneway=method.kind.is_oneway,
        is_idempotent=method.kind.is_idempotent,
        annotations=method.kind.annotations,
    )


def argument_names(kind: type[Any]) -> tuple[str, ...]:
    """Return the names of a method's arguments in the order of the call: that of the struct's fields."""
    if dataclasses.is_dataclass(kind):
        return tuple(each.name for each in dataclasses.fields(kind))
    return tuple(each[2] for each in kind.thrift_spec if each is not None)


def _getter(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what takes these attributes of a struct."""
    if len(names) > 1:
        return attrgetter(*names)
    if not names:
        return lambda _: ()
    only = attrgetter(*names)  # gives no tuple
    return lambda struct: (only(struct),)


def _find_handler(service: ServiceType, handler: object, name: str) -> Callable[..., Any]:
    """Return the handler's method: its name in the contract may begin with an upper-case letter."""
    names = [f"{first}{name[1:]}{last}" for first in (name[0], name[0].upper()) for last in ("", "_")]
    for each in names:
        if callable(found := getattr(handler, each, None)):
            return found  # type: ignore[no-any-return]
    raise ValueError(f"{type(handler).__name__} has no method {name!r}, which the service {service.name} has")


def _calling(method: Callable[..., Any]) -> Proceed:
    async def call(ctx: Context, called: Call) -> Any:
        returned = method(ctx, *called.arguments)
        return await returned if inspect.isawaitable(returned) else returned

    return call


def _declared(kind: MethodType, error: Exception) -> str | None:
    """Return the field of the result that holds such an exception; None: the contract does not declare it."""
    return next((kind.exceptions[each] for each in type(error).__mro__ if each in kind.exceptions), None)


def _what(request: Request) -> tuple[str, str]:
    return repr(request.method), repr(request.ctx.correlation_id)


def _internal(request: Request) -> InternalError:
    text = (
        f"{request.method!r} failed; the log of the service tells why, at correlation id {request.ctx.correlation_id!r}"
    )
    return InternalError(text)


class _OverAtService(DeadlineExceeded):
    """The time of the request itself is over."""


def _too_late(method: _Method) -> DeadlineExceeded:
    return _OverAtService(f"the time of the call to {method} was over at the service")


def _as_answered(problem: FrugalError) -> FrugalError:
    return ProtocolError(str(problem)) if isinstance(problem, CodecError | FrameError) else problem
