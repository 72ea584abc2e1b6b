"""Externally run products: their names, and the addresses that they need.

Rules: The benchmark does not search for products. If an address or the client package of a requested product is
missing, the call fails before anything is started, and names it.

| product      | addresses                                                 |
|--------------|-----------------------------------------------------------|
| `kafka`      | any broker of the cluster                                 |
| `liftbridge` | its gRPC service, and its nats-server                     |
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.base.addresses import Address
from penstock_bench import extras
from penstock_bench.systems import kafka, liftbridge
from penstock_bench.systems.system import Variant

NAMES = {"kafka": kafka.NAMES, "liftbridge": liftbridge.NAMES}
"""The variants of each product."""
KNOWN = (*kafka.NAMES, *liftbridge.NAMES)
"""All variants of these products."""


class ProductAddresses(msgspec.Struct, frozen=True):
    """The addresses that the user gave."""

    kafka: Address | None = None
    liftbridge: Address | None = None
    liftbridge_nats: Address | None = None


def variants(names: Iterable[str], addresses: ProductAddresses) -> tuple[Variant, ...]:
    """Return the variants of external products among these names.

    Raise ValueError if an address is missing, OperationalError if the client's package is.
    """
    wanted = set(names)
    found: list[Variant] = []
    if wanted & set(kafka.NAMES):
        found += kafka.variants(_given(addresses.kafka, "Kafka", "--kafka-address"))
        extras.required(extras.KAFKA)
    if wanted & set(liftbridge.NAMES):
        service = _given(addresses.liftbridge, "Liftbridge", "--liftbridge-address")
        nats = _given(addresses.liftbridge_nats, "Liftbridge's nats-server", "--liftbridge-nats")
        found += liftbridge.variants(service, nats)
        extras.required(extras.LIFTBRIDGE)
    return tuple(one for one in found if one.name in wanted)


def _given(address: Address | None, what: str, option: str) -> Address:
    if address is None:
        raise ValueError(f"{what} is not started for you: say where it listens, with {option} HOST:PORT")
    return address
