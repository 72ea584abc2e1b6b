"""Options of `penstock bench` with the addresses of products that the user runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from penstock.base.addresses import Address
    from penstock_bench.systems.external import ProductAddresses

PRODUCTS = ("kafka", "liftbridge")
_PANEL = "Products that you run"


def _is_address(text: str | None) -> str | None:
    try:
        _address(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def _address(text: str | None) -> Address | None:
    from penstock.base.addresses import parse_address

    return None if text is None else parse_address(text)


KafkaAddress = Annotated[
    str | None,
    typer.Option(
        "--kafka-address",
        metavar="HOST:PORT",
        help="A broker of the Kafka to measure, for --against kafka; plain text, no authentication.",
        callback=_is_address,
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
LiftbridgeAddress = Annotated[
    str | None,
    typer.Option(
        "--liftbridge-address",
        metavar="HOST:PORT",
        help="The gRPC service of the Liftbridge to measure, for --against liftbridge; without TLS.",
        callback=_is_address,
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]
LiftbridgeNats = Annotated[
    str | None,
    typer.Option(
        "--liftbridge-nats",
        metavar="HOST:PORT",
        help="The nats-server that this Liftbridge uses: messages are published there.",
        callback=_is_address,
        rich_help_panel=_PANEL,
        show_default=False,
    ),
]


def addresses(kafka: str | None, liftbridge: str | None, liftbridge_nats: str | None) -> ProductAddresses:
    """Return the three options as addresses."""
    from penstock_bench.systems.external import ProductAddresses

    return ProductAddresses(_address(kafka), _address(liftbridge), _address(liftbridge_nats))


def check_used(given: ProductAddresses, systems: Collection[str]) -> None:
    """Raise BadParameter if an address belongs to a product that is not measured: --against is missing."""
    from penstock_bench.systems.external import NAMES

    options = (
        ("kafka", "--kafka-address", given.kafka),
        ("liftbridge", "--liftbridge-address", given.liftbridge),
        ("liftbridge", "--liftbridge-nats", given.liftbridge_nats),
    )
    for product, option, address in options:
        if address is not None and not set(NAMES[product]) & set(systems):
            raise typer.BadParameter(
                f"this product is not measured: add --against {product}, or leave this out", param_hint=f"'{option}'"
            )
