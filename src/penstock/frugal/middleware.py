"""Middleware: functions around each call, publish and handler, on client, server, publisher and subscriber.

Rules: one form for all four. The first of a list is the outermost: it sees the arguments first and the result last.
A middleware returns what `proceed` returned, or something else, or raises; it may call `proceed` several times (a
retry) or not at all (a refusal). It sees arguments and results as Python objects, before they are encoded and after
they are decoded, and exceptions that a contract declares as exceptions.

    async def timed(ctx: Context, call: Call, proceed: Proceed) -> Any:
        began = time.monotonic()
        try:
            return await proceed(ctx, call)
        finally:
            print(call.name, time.monotonic() - began)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import Any

from penstock.frugal.context import Context


class Side(StrEnum):
    """Place of a middleware in a call."""

    CLIENT = "client"  # around a request and its answer
    SERVER = "server"  # around a method's handler
    PUBLISHER = "publisher"  # around a publish, and its ack if the scope is durable
    SUBSCRIBER = "subscriber"  # around the handler of a message


@dataclass(frozen=True, slots=True)
class Call:
    """A call that a middleware sees: a method with its arguments, or an operation with its message as the only one.

    `owner`: the service or scope, `name`: the method or operation, both as in the contract. `annotations` are those of
    the method or operation. `is_idempotent`: whether a retry may repeat it. `deliveries`: how often a durable message
    was given to a handler, this time included.
    """

    side: Side
    owner: str
    name: str
    arguments: tuple[Any, ...]
    subject: str = ""
    is_oneway: bool = False
    is_idempotent: bool = False
    deliveries: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.owner}.{self.name}"


Proceed = Callable[[Context, Call], Awaitable[Any]]
"""The rest of the chain; at its end the request, the handler or the publish."""
Middleware = Callable[[Context, Call, Proceed], Awaitable[Any]]


def chain(middleware: Sequence[Middleware], last: Proceed) -> Proceed:
    """Return `last` with all middleware around it, the first of them outermost. Made once, not for each call."""
    return reduce(_around, reversed(middleware), last)


def _around(proceed: Proceed, middleware: Middleware) -> Proceed:
    async def call(ctx: Context, called: Call) -> Any:
        return await middleware(ctx, called, proceed)

    return call
