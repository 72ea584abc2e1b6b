"""nats-servers that the link tries, in order: configured ones, and those that NATS announces.

Rules: configured servers stay. Announced ones (`connect_urls` in INFO) replace those announced before; an empty list
replaces nothing, because nats-server also sends one when it announces nothing. An announcement counts only from a
server that has accepted our credentials, and if the connection has TLS, only through TLS. Its length is bounded, and
invalid entries are skipped.

A round tries every configured server in order, and then announced ones, in turn. There may be many, unreachable from
here (addresses of another network): a round ends after a time limit, so that the configured ones are tried again soon,
and the next round continues with the next announced server.

| of an announced server      | comes from                                                                            |
|-----------------------------|---------------------------------------------------------------------------------------|
| user and password, or token | the URL of the server that announced it                                               |
| TLS                         | that connection: if it has TLS, this one must, too                                    |
| the name to verify          | its own host; if that is an IP address, the host name of the server that announced it |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from penstock.base import limits
from penstock.base.addresses import Address, parse_address
from penstock.broker.security.nats_credentials import NatsServer


class NatsPool:
    """The servers to try. `random` returns numbers in [0, 1), so that brokers spread over the servers."""

    def __init__(self, named: Sequence[NatsServer], *, uses_announced: bool, random: Callable[[], float]) -> None:
        assert named
        self._named = tuple(named)
        self._uses_announced = uses_announced
        self._random = random
        self._announced: deque[NatsServer] = deque()  # the first one is tried next

    @property
    def announced(self) -> tuple[NatsServer, ...]:
        """The servers that NATS announces and that are not configured."""
        return tuple(sorted(self._announced, key=str))

    def announce(self, addresses: Sequence[str], by: NatsServer, *, has_tls: bool) -> None:
        """Take the addresses that the server `by` announces, on a connection with or without TLS."""
        if not self._uses_announced:
            return
        named = {(server.host, server.port) for server in self._named}
        found = [announced_server(text, by, has_tls=has_tls) for text in addresses[: limits.NATS_ANNOUNCED_MAX]]
        servers = {server for server in found if server is not None and (server.host, server.port) not in named}
        if any(found) and servers != set(self._announced):
            self._announced = deque(sorted(sorted(servers, key=str), key=lambda server: self._random()))

    def round(self, may_go_on: Callable[[], bool]) -> Iterator[NatsServer]:
        """Yield the servers of one round: at least one announced server, and more while `may_go_on`."""
        yield from self._named
        for number in range(len(self._announced)):
            if number >= len(self._announced) or (number and not may_go_on()):
                return
            server = self._announced[0]
            self._announced.rotate(-1)
            yield server


def announced_server(text: str, by: NatsServer, *, has_tls: bool) -> NatsServer | None:
    """Return the server at an announced `host:port`, or None if that is invalid."""
    try:
        address = parse_address(text)
    except ValueError:
        return None
    if address.is_any:
        return None
    verified = by.verified_host
    is_verified_by_name = address.is_literal and not Address(verified, 1).is_literal
    return replace(
        by,
        host=address.host,
        port=address.port,
        tls=by.tls or has_tls,
        tls_name=verified if is_verified_by_name else None,
    )
