"""Create an asyncio client: `client = await connect()`, or `async with connect() as client`."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any

from penstock import __version__
from penstock.base.nats_logins import nats_urls
from penstock.client.aio import Client
from penstock.client.checks import seconds_of
from penstock.client.link.addresses import DEFAULT_SERVER, SERVER_VARIABLE, parse_servers
from penstock.client.link.credentials import Given, credentials_of
from penstock.client.link.link import Link
from penstock.client.link.of_this_process import OfThisProcess
from penstock.client.link.read_from import LEADER, ReadFrom, Which, read_from_of
from penstock.client.link.tls import ClientTls, TlsOptions, plain, settled
from penstock.client.publish_format import a_kind


def connect(
    server: str | Sequence[str] | None = None,
    *,
    nats: str | Sequence[str] | None = None,
    nats_options: Mapping[str, Any] | None = None,
    name: str = "penstock-python",
    rack: str | None = None,
    read_from: ReadFrom | Which = "leader",
    credentials: Given = None,
    tls: bool | TlsOptions | None = None,
    timeout: float = 10.0,
) -> Connecting:
    """Connect to the cluster of `server` ("HOST:PORT"; default $PENSTOCK_SERVER, else 127.0.0.1:7422).

    One broker is enough to find the others; several ("HOST:PORT,HOST:PORT", or a list) are tried in random order.
    `nats`: NATS servers to publish to, if not those of the broker; `nats_options` are passed to `nats.connect`
    (credentials, TLS).
    `read_from`: which replicas to read from; `rack`: the rack of this program, to find the nearest replica.
    `credentials`: a file, or a `penstock.Credentials`; default: the environment (PENSTOCK_CREDENTIALS, …).
    `tls`: True, or the files to use (`TlsOptions`); a server "tls://HOST:PORT" or $PENSTOCK_TLS_CA also enables it.
    Unavailable: no broker answers there. TimedOut: no answer in time. Unauthenticated: the credentials are refused.
    """
    listed: Any = [server] if isinstance(server, str) else server
    if listed is not None and not (isinstance(listed, Sequence) and all(isinstance(one, str) for one in listed)):
        raise TypeError(f"the server is {a_kind(server)}; give 'HOST:PORT', such as {DEFAULT_SERVER!r}")
    if seconds_of(timeout) <= 0:
        raise ValueError(f"the time-out is {timeout:g} s; give it some time")
    servers = parse_servers(os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER if listed is None else listed)
    addresses, options = settled(servers, tls, os.environ)
    link = Link(
        addresses,
        name,
        __version__,
        rack=rack,
        read_from=read_from_of(read_from) or LEADER,
        show=credentials_of(credentials),
        dialling=plain if options is None else ClientTls(options).dialling,
    )
    return Connecting(link, Client(link, name, _urls(nats), dict(nats_options or {})), timeout)


def _urls(nats: Any) -> list[str] | None:
    """Return the NATS servers to publish to; None: those of the brokers. TypeError, ValueError."""
    if nats is None:
        return None
    if not isinstance(nats, str | Sequence) or not all(isinstance(one, str) for one in nats):
        raise TypeError(f"nats is {a_kind(nats)}; give 'nats://HOST:PORT', or a list of such")
    urls = nats_urls(nats) if isinstance(nats, str) else list(nats)
    if not urls:
        raise ValueError(f"nats is {nats!r}: no server is given; leave it out to publish where the brokers say")
    return urls


class Connecting(OfThisProcess):
    """A client that is not connected yet: `await` it, or use it in `async with`, which closes the client."""

    def __init__(self, link: Link, client: Client, timeout_s: float) -> None:
        self._link = link
        self._client = client
        self._timeout_s = timeout_s

    async def open(self) -> Client:
        """Connect and return the client."""
        await self._link.connect(self._timeout_s)
        return self._client

    def __await__(self) -> Generator[Any, None, Client]:
        return self.open().__await__()

    async def __aenter__(self) -> Client:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.close()
