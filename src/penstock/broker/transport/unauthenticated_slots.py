"""Limited places for peers that are not authenticated yet, and which of them is closed if there are too many.

Rules: places are accounted by address. The oldest of the address with most places is closed: abandoned logins or
handshakes from one address displace only each other. For IPv6 the address is the /64 network, which is what one
customer has. All operations take constant time.
"""

from __future__ import annotations

import ipaddress
from typing import Generic, TypeVar

from penstock.base.addresses import Address

T = TypeVar("T")


class UnauthenticatedSlots(Generic[T]):
    """Peers by address, in the order of their age."""

    def __init__(self) -> None:
        self._address_of: dict[T, str] = {}
        self._held: dict[str, dict[T, None]] = {}  # by address, the oldest first
        self._holding: dict[int, dict[str, None]] = {}  # number of places → addresses that have that many
        self._most = 0

    def __len__(self) -> int:
        return len(self._address_of)

    def __contains__(self, one: T) -> bool:
        return one in self._address_of

    def take(self, one: T, peer: str) -> None:
        """Add a place. `peer`: HOST:PORT."""
        address = self._address_of[one] = address_of(peer)
        held = self._held.setdefault(address, {})
        held[one] = None
        self._count(address, len(held) - 1, len(held))

    def leave(self, one: T) -> None:
        """Remove a place; idempotent."""
        address = self._address_of.pop(one, None)
        if address is not None:
            held = self._held[address]
            del held[one]
            self._count(address, len(held) + 1, len(held))
            if not held:
                del self._held[address]

    def renew(self, one: T) -> None:
        """Make it the youngest of its address, if it has a place."""
        if (address := self._address_of.get(one)) is not None:
            held = self._held[address]
            del held[one]
            held[one] = None

    def first_to_go(self) -> T:
        """Return the one to close; there must be one."""
        address = next(iter(self._holding[self._most]))
        return next(iter(self._held[address]))

    def _count(self, address: str, before: int, after: int) -> None:
        if before:
            addresses = self._holding[before]
            del addresses[address]
            if not addresses:
                del self._holding[before]
        if after:
            self._holding.setdefault(after, {})[address] = None
        # Counts change by one at a time.
        self._most = after if after > self._most else self._most if self._most in self._holding else after


def is_of_this_machine(peer: str, own: str) -> bool:
    """True if a connection from `peer` (HOST:PORT) to the address `own` comes from a program on this machine.

    That holds if `peer` is a loopback address, or `own` itself: a program that connects to an address of its own
    machine has that address, and no other machine can complete a TCP handshake from it.
    """
    host = peer.rpartition(":")[0].strip("[]")
    return host == own or Address(host, 0).is_loopback


def address_of(peer: str) -> str:
    """Return the address by which the places of HOST:PORT are accounted."""
    host = peer.rpartition(":")[0]
    try:
        found = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv4Address):
        return host
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, 64), strict=False))
