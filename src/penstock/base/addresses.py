"""Parses socket addresses of the form `HOST:PORT`.

Rules: every address that others are given (settings, requests, the metadata) is validated here first. A valid one can
be passed to the system's name resolution, which then fails with an OSError at worst; for other texts it raises
unexpected errors.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

ADDRESS_CHARS_MAX = 261
"""Limit of an address in characters; a host has up to 255."""
_NOT_IN_HOSTS = frozenset(",/@[]?#\\\"'=<>{}|^`;&$!*()")


class Address(NamedTuple):
    """Address on which a socket listens or is reached. `str()` gives HOST:PORT, with brackets around IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it. False for any name other than localhost."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    @property
    def is_any(self) -> bool:
        """True for the unspecified address (0.0.0.0, ::), which clients cannot connect to."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_unspecified
        except ValueError:
            return False

    @property
    def is_literal(self) -> bool:
        """True if the host is an IP address, not a name."""
        return is_ip(self.host)


def is_ip(host: str) -> bool:
    """True if the text is an IP address, not a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def unwanted(text: str) -> str | None:
    """Return why the text, with a login or a scheme, is more than HOST:PORT; None if not. Quotes no login."""
    scheme, separator, behind = text.strip().partition("://")
    if "@" in text:
        bare = re.split(r"[/?#,]", text.strip().rpartition("@")[2])[0]
        return f"an address has no login, and this one has an '@': write HOST:PORT, as in {bare!r}"
    if separator:
        return f"an address has no scheme ({scheme}://): write HOST:PORT, as in {re.split('[/?#]', behind)[0]!r}"
    return None


def parse_address(text: str, *, any_port: bool = False) -> Address:
    """Parse `HOST:PORT` or `[IPv6]:PORT`; port 0 only with `any_port`. ValueError says what is expected."""
    if (mistake := unwanted(text)) is not None:
        raise ValueError(mistake)
    if len(text) > ADDRESS_CHARS_MAX:
        raise ValueError(f"an address has up to {ADDRESS_CHARS_MAX} characters, not {len(text)}")
    host, colon, port_text = text.strip().rpartition(":")
    expected = "expected HOST:PORT, such as 127.0.0.1:7422 or [::1]:7422"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{text!r}: {host!r} is not an IPv6 address; {expected}") from None
    elif ":" in host:
        raise ValueError(f"{text!r}: an IPv6 address needs brackets; {expected}")
    if not colon or not may_be_host(host):
        raise ValueError(f"{text!r} is not an address; {expected}")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65_535:
        raise ValueError(f"{text!r}: {port_text!r} is not a port (0 to 65535); {expected}")
    if int(port_text) == 0 and not any_port:
        raise ValueError(f"{text!r}: port 0 means any free port, so no client could connect to it")
    return Address(host, int(port_text))


def is_address(text: str) -> bool:
    """True if the text is an address that others can be given."""
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def may_be_host(host: str) -> bool:
    """True if the host can be resolved: a name, or an IPv4 address."""
    if not host or not host.isprintable() or not _NOT_IN_HOSTS.isdisjoint(host) or any(map(str.isspace, host)):
        return False
    try:
        host.encode("idna")  # as `socket.getaddrinfo` does; UnicodeError where a label is empty or too long
    except UnicodeError:
        return False
    return True
