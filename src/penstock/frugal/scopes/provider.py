"""Common parts of the publishers and subscribers of a program: connections, codec, framing, middleware."""

from __future__ import annotations

import os
import random as random_module
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock.client.aio import Client
from penstock.frugal.codecs import BINARY, Codec
from penstock.frugal.middleware import Middleware
from penstock.frugal.scopes.framing import ScopeFraming
from penstock.frugal.scopes.streams import KeptStreams

if TYPE_CHECKING:
    from nats.aio.client import Client as NatsConnection


def _new_id() -> str:
    return os.urandom(16).hex()  # as good as a UUID, in half the time


class ScopeProvider:
    """Connections and settings of scopes.

    `nats`: a connection of nats-py, for what no stream keeps. `client`: a `penstock.aio` client, for durable publishing
    and subscribing, which need no connection of nats-py. `codec`: what is written; in frugal-v0 framing also what is
    read. `framing`: "frugal-v0", as Frugal's own libraries, or "native"; subscribers take both. `middleware` is around
    that of a publisher or subscriber. Both connections stay their owner's: nothing here closes them.
    """

    def __init__(
        self,
        nats: NatsConnection | None = None,
        *,
        client: Client | None = None,
        codec: Codec = BINARY,
        framing: ScopeFraming | str = ScopeFraming.FRUGAL,
        middleware: Sequence[Middleware] = (),
        random: Callable[[], float] = random_module.random,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        """`random`: numbers from 0 to 1, for back-off. `new_id`: message ids, each once in the world."""
        self._nats = nats
        self._client = client
        self.codec = codec
        self.framing = ScopeFraming(framing)
        self.middleware = tuple(middleware)
        self.random = random
        self.new_id = new_id
        self._streams = None if client is None else KeptStreams(client)

    @property
    def nats(self) -> NatsConnection:
        """The connection of nats-py. ValueError: none was given."""
        if self._nats is None:
            raise ValueError("no stream keeps this, so it needs a connection of nats-py: ScopeProvider(nats, …)")
        return self._nats

    @property
    def client(self) -> Client:
        """The client of Penstock. ValueError: none was given."""
        if self._client is None:
            raise ValueError("a stream keeps this, so it needs a client: ScopeProvider(client=penstock.aio client, …)")
        return self._client

    @property
    def streams(self) -> KeptStreams:
        """The streams that the client has looked up. ValueError: no client was given."""
        if self._streams is None:
            _ = self.client
        assert self._streams is not None
        return self._streams
