"""Products that somebody else runs: which there are, and which addresses they are found at.

Rules: none is looked for. One that is asked for without its addresses is a mistake in the call, and says which are
missing, before anything is started; so does one whose client is not installed.

| product      | its addresses                                             |
|--------------|-----------------------------------------------------------|
| `kafka`      | any broker of the cluster                                 |
| `liftbridge` | its gRPC service, and the nats-server that it listens to  |
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from penstock.base.addresses import Address
from penstock.bench import extras, kafka, liftbridge
from penstock.bench.systems import Variant

NAMES = {"kafka": kafka.NAMES, "liftbridge": liftbridge.NAMES}
"""The variants of each product."""
KNOWN = (*kafka.NAMES, *liftbridge.NAMES)
"""All of them."""


class Addresses(msgspec.Struct, frozen=True):
    """Where they run, as far as somebody said."""

    kafka: Address | None = None
    liftbridge: Address | None = None
    liftbridge_nats: Address | None = None


def variants(names: Iterable[str], addresses: Addresses) -> tuple[Variant, ...]:
    """Those of these names that stand in no table of `systems`.

    ValueError where an address is missing, OperationalError where the client's package is.
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
