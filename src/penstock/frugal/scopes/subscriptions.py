"""A subscription of a scope, whatever feeds it: its end, its counts, and what every message goes through.

Rules: nothing that comes in ends a subscription: what cannot be decoded is counted and told, an exception of a handler
too. `drain` lets what has come be handled; `unsubscribe` stops at once. `async with` drains.
"""

from __future__ import annotations

import abc
import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from penstock.frugal.codecs import Codec
from penstock.frugal.context import Context
from penstock.frugal.contracts import OperationType, ScopeType
from penstock.frugal.middleware import Call, Middleware, Side, chain
from penstock.frugal.scopes.framing import decode_message
from penstock.frugal.scopes.subjects import ScopeSubjects

Handler = Callable[[Context, Any], Awaitable[None] | None]
"""Takes the context and the message; a coroutine function, or a function that does not block."""

DRAIN_TIMEOUT_S: Final = 30.0


class MessageRejected(Exception):  # noqa: N818
    """A handler raises it for a message that no later attempt can take: a dead letter at once, if it is durable."""


class Receiver:
    """Way of a message: decoding, middleware, the handler."""

    def __init__(
        self,
        scope: ScopeType,
        operation: OperationType,
        codec: Codec,
        middleware: Sequence[Middleware],
        handler: Handler,
    ) -> None:
        self.scope = scope
        self.operation = operation
        self._subjects = ScopeSubjects(scope)
        self._codec = codec
        self._handler = handler
        self._chain = chain(middleware, self._end)

    def decode(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> tuple[Context, Any]:
        """Return context and message. FrameError, CodecError: it is none of this operation."""
        ctx, message = decode_message(self._codec, self.operation, payload, headers)
        ctx.topic = {**ctx.topic, **self._subjects.variables_of(subject)}
        return ctx, message

    async def handle(self, ctx: Context, message: Any, subject: str, deliveries: int = 1) -> None:
        """Run middleware and handler; raise what they raise. A cancellation that no caller asked for is an error."""
        call = Call(
            Side.SUBSCRIBER,
            self.scope.name,
            self.operation.name,
            (message,),
            subject=subject,
            is_oneway=True,
            deliveries=deliveries,
            annotations=self.operation.annotations,
        )
        try:
            await self._chain(ctx, call)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise RuntimeError("the handler was cancelled from inside") from None

    async def _end(self, ctx: Context, call: Call) -> None:
        result = self._handler(ctx, *call.arguments)
        if inspect.isawaitable(result):
            await result

    def __str__(self) -> str:
        return f"{self.scope.name}.{self.operation.name}"


class Subscription(abc.ABC):
    """A subscription that runs. Made by the subscribers of generated code."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        """The pattern that it hears."""
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Mapping[str, int]:
        """Counters so far: `handled`, `failed`, `malformed`, and more that not each subscription has."""
        return {"handled": 0, "failed": 0, "malformed": 0, **self._counts}

    @abc.abstractmethod
    async def drain(self, *, timeout: float = DRAIN_TIMEOUT_S) -> None:
        """Take no more messages, handle those that have come, and end. TimeoutError: a handler took longer; it ends."""

    @abc.abstractmethod
    async def unsubscribe(self) -> None:
        """End at once; handlers that run are cancelled. May be called twice."""

    @abc.abstractmethod
    async def wait(self) -> None:
        """Wait for the end. Raises what ended it, if it was not asked to end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.drain()
        else:
            await self.unsubscribe()
