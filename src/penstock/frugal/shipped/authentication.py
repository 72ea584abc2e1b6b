"""A check of who calls, by a token in a header. An example for other checks, and enough for services of one owner.

Rules: tokens go over the wire as they are, so NATS or HTTP needs TLS. A refusal says nothing but that. A context that a
handler copies for another call has the token, too: give such calls a context of their own where that must not be.
"""

from __future__ import annotations

import hmac
import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from penstock.frugal.context import Context
from penstock.frugal.errors import CallUnauthenticated
from penstock.frugal.middleware import Call, Middleware, Proceed

HEADER = "authorization"

Check = Callable[[str, Call], bool | Awaitable[bool]]
"""Says whether a caller with this token may make the call."""


def require_token(check: Check, *, header: str = HEADER, open_methods: Collection[str] = ()) -> Middleware:
    """Return a server's middleware that lets calls pass if `check` says so, and calls of `open_methods`."""

    async def checked(ctx: Context, call: Call, proceed: Proceed) -> Any:
        if call.name not in open_methods:
            token = ctx.headers.get(header)
            if token is None:
                raise CallUnauthenticated(f"the call has no header {header!r}, which the service requires")
            allowed = check(token, call)
            if not (await allowed if inspect.isawaitable(allowed) else allowed):
                raise CallUnauthenticated(f"the service does not accept the token in the header {header!r}")
        return await proceed(ctx, call)

    return checked


def one_of(tokens: Collection[str]) -> Check:
    """Return a check that accepts these tokens; how long it takes does not tell how much of one was right."""
    known = [token.encode() for token in tokens]
    if not known or not all(known):
        raise ValueError("give a token at least, and no empty one")

    def check(token: str, call: Call) -> bool:
        given = token.encode()
        return any([hmac.compare_digest(given, each) for each in known])  # noqa: C419 (each is compared)

    return check


def with_token(token: str | Callable[[], str], *, header: str = HEADER) -> Middleware:
    """Return a client's middleware that sends a token, or what a function returns for each call."""

    async def sent(ctx: Context, call: Call, proceed: Proceed) -> Any:
        ctx.set_header(header, token if isinstance(token, str) else token())
        return await proceed(ctx, call)

    return sent
