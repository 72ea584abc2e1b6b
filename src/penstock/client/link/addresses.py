"""Parse broker addresses: `HOST:PORT`, or several separated by commas.

Rules: `tls://HOST:PORT` means TLS; a query may name the files, as in a URL:
`tls://HOST:PORT?ca=FILE&cert=FILE&key=FILE&server_name=NAME`, so one string has all that is needed to connect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl, quote, urlencode

from penstock.base import limits
from penstock.base.addresses import is_ip, unwanted

DEFAULT_PORT = 7422
DEFAULT_SERVER = f"127.0.0.1:{DEFAULT_PORT}"
SERVER_VARIABLE = "PENSTOCK_SERVER"
"""Environment variable with the servers to use if none are given."""

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 (wildcard listen addresses, which clients cannot connect to)


def parse_server(server: str) -> tuple[str, int]:
    """Return (host, port) of "HOST:PORT", "HOST" or "[IPv6]:PORT". ValueError explains the mistake."""
    if unwanted(server) is not None:
        raise _unwanted(server)
    text = server.strip()
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"the server {server!r} is not [ADDRESS]:PORT")
        port_text = rest[1:]
    elif text.count(":") > 1:
        host, port_text = text, ""
        before, _, last = text.rpartition(":")
        if last.isdigit() and is_ip(before) and (before == "::1" or not is_ip(text)):
            raise ValueError(f"the server {server!r}: an IPv6 address needs brackets: [{before}]:{last}")
    else:
        host, _, port_text = text.partition(":")
    if not host or any(char in host for char in "/@ "):
        raise ValueError(f"the server {server!r} is not HOST:PORT, such as 127.0.0.1:{DEFAULT_PORT}")
    if not port_text:
        return host, DEFAULT_PORT
    if not (port_text.isascii() and port_text.isdigit() and 0 < int(port_text) < 65_536):
        raise ValueError(f"the port of the server {server!r} is not a number from 1 to 65535")
    return host, int(port_text)


TLS_SCHEME = "tls://"
TLS_FIELDS = ("ca", "cert", "key", "server_name")


def parse_tls(server: str) -> tuple[str, dict[str, str] | None]:
    """Return HOST:PORT and the query fields of a `tls://` address; None: not a TLS address. ValueError."""
    text = server.strip()
    if not text.lower().startswith(TLS_SCHEME):
        return text, None
    address, _, query = text[len(TLS_SCHEME) :].partition("?")
    try:
        fields = dict(parse_qsl(query, strict_parsing=True)) if query else {}
    except ValueError:
        raise ValueError(_shown(server, f"after the ? is {query!r}, which is not NAME=FILE")) from None
    if unknown := sorted(fields.keys() - set(TLS_FIELDS)):
        raise ValueError(_shown(server, f"there is no {unknown[0]!r}; known are {', '.join(TLS_FIELDS)}"))
    return address.rstrip("/"), fields


def _shown(server: str, mistake: str) -> str:
    """Return an error text that quotes the server, unless it may contain credentials."""
    return f"the server {server!r}: {mistake}" if "@" not in server else str(_unwanted(server))


def _unwanted(server: str) -> ValueError:
    if server.partition("://")[0].strip().lower() == "nats" and "@" not in server:
        text = "nats:// is the address of a NATS server; a broker listens on another port, usually"
        return ValueError(f"the server: {text} {DEFAULT_PORT}: write HOST:PORT, as in '127.0.0.1:{DEFAULT_PORT}'")
    advice = "; --credentials FILE (PENSTOCK_CREDENTIALS) says who logs in" if "@" in server else ", or tls://HOST:PORT"
    return ValueError(f"the server: {unwanted(server)}{advice}")


def with_tls(server: str, fields: Mapping[str, str]) -> str:
    """Return the `tls://` address with `fields` added; they override the address's own fields."""
    address, own = parse_tls(server)
    query = urlencode({**(own or {}), **fields}, safe="/", quote_via=quote)
    return f"{TLS_SCHEME}{address}" + (f"?{query}" if query else "")


def parse_servers(servers: str | Iterable[str]) -> tuple[str, ...]:
    """Split "HOST:PORT,HOST:PORT", or a list of such, into distinct addresses in order. ValueError."""
    listed = [servers] if isinstance(servers, str) else list(servers)
    found = tuple(dict.fromkeys(one.strip() for text in listed for one in text.split(",") if one.strip()))
    try:
        for one in found:
            parse_server(parse_tls(one)[0])
    except ValueError:
        for text in listed:
            if "@" in text:  # a password that contains a comma would be split
                raise _unwanted(text) from None
        raise
    if not found:
        raise ValueError("no server is given; give HOST:PORT, or several with commas between")
    if len(found) > limits.CLIENT_BROKERS_MAX:
        raise ValueError(f"{len(found)} servers are given; {limits.CLIENT_BROKERS_MAX} are the most")
    return found


def is_address(text: object) -> bool:
    """True if `text`, advertised by a broker, is an address that clients can connect to."""
    if not isinstance(text, str):
        return False
    try:
        host, _ = parse_server(text)
    except ValueError:
        return False
    return host not in _EVERYWHERE
