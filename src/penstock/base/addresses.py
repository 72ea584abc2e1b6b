"""Addresses of sockets, as they are written: `HOST:PORT`.

Rules: whatever tells an address to others (settings, requests, the metadata) is asked here first. What passes can be
handed to the system's look-up of names: that fails with an OSError at worst, whereas for other texts it raises errors
that nobody expects of it.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

ADDRESS_CHARS_MAX = 261
"""A host has up to 255."""
_NOT_IN_HOSTS = frozenset(",/@[]?#\\\"'=<>{}|^`;&$!*()")


class Address(NamedTuple):
    """Where a socket listens or is reached; `str()` gives HOST:PORT, with brackets around IPv6."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than localhost could be anything."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host.lower() == "localhost"

    @property
    def is_any(self) -> bool:
        """Whether it stands for every address of the machine, and so for none that others could use."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_unspecified
        except ValueError:
            return False

    @property
    def is_literal(self) -> bool:
        """Whether its host is an IP address, and no name of one."""
        return is_ip(self.host)


def is_ip(host: str) -> bool:
    """Whether that is an IP address, and no name of one."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def unwanted(text: str) -> str | None:
    """Why that is more than HOST:PORT: it has a login or a scheme. None: it has not. No part of a login is repeated."""
    scheme, separator, behind = text.strip().partition("://")
    if "@" in text:
        bare = re.split(r"[/?#,]", text.strip().rpartition("@")[2])[0]
        return f"an address has no login, and this one has an '@': write HOST:PORT, as in {bare!r}"
    if separator:
        return f"an address has no scheme ({scheme}://): write HOST:PORT, as in {re.split('[/?#]', behind)[0]!r}"
    return None


def parse_address(text: str, *, any_port: bool = False) -> Address:
    """`HOST:PORT` or `[IPv6]:PORT`; port 0 only with `any_port`. ValueError that says what is expected."""
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
        raise ValueError(f"{text!r}: an IPv6 address stands in brackets; {expected}")
    if not colon or not may_be_host(host):
        raise ValueError(f"{text!r} is not an address; {expected}")
    if not (port_text.isascii() and port_text.isdigit()) or int(port_text) > 65_535:
        raise ValueError(f"{text!r}: {port_text!r} is not a port (0 to 65535); {expected}")
    if int(port_text) == 0 and not any_port:
        raise ValueError(f"{text!r}: port 0 means any free port, which cannot be told to anybody else")
    return Address(host, int(port_text))


def is_address(text: str) -> bool:
    """Whether others can be told that a broker is there."""
    try:
        parse_address(text)
    except ValueError:
        return False
    return True


def may_be_host(host: str) -> bool:
    """Whether that can be looked up: a name, or an IPv4 address."""
    if not host or not host.isprintable() or not _NOT_IN_HOSTS.isdisjoint(host) or any(map(str.isspace, host)):
        return False
    try:
        host.encode("idna")  # as `socket.getaddrinfo` does; UnicodeError where a label is empty or too long
    except UnicodeError:
        return False
    return True
