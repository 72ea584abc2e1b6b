"""Options shared by the commands of `penstock bench`: systems, rounds, folder and result files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from penstock.base import limits
from penstock.base.units import parse_bytes, parse_duration_us
from penstock_bench.cli import product_addresses

PRODUCTS = ("jetstream",)  # those that the bench starts itself
LOAD_PANEL = "Load"
RUN_PANEL = "Run"
_ROUNDS_DEFAULT = 5
_ROUNDS_MAX = 1_000
_REPLICAS = 3


def _products(partly: str) -> list[str]:
    return [name for name in PRODUCTS if name.startswith(partly)]


def _all_products(partly: str) -> list[str]:
    return [name for name in (*PRODUCTS, *product_addresses.PRODUCTS) if name.startswith(partly)]


def _check_any_product(names: list[str] | None) -> list[str]:
    known = _all_products("")
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return names or []


def _check_product(names: list[str] | None) -> list[str]:
    unknown = [name for name in names or () if name not in PRODUCTS]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(PRODUCTS)}")
    return names or []


def _check_replicas(count: int) -> int:
    if count not in (1, _REPLICAS):
        raise typer.BadParameter(f"a stream has one replica here, or {_REPLICAS}")
    return count


def _systems(partly: str) -> list[str]:
    from penstock_bench.systems import clusters, external
    from penstock_bench.systems.system import VARIANTS

    return [name for name in (*VARIANTS, *clusters.VARIANTS, *external.KNOWN) if name.startswith(partly)]


def _check_systems(names: list[str] | None) -> list[str]:
    known = _systems("") if names else []
    unknown = [name for name in names or () if name not in known]
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return names or []


def _writable(file: Path | None) -> Path | None:
    """Raise BadParameter if the file cannot be written; checked before an hour of measurements, not after."""
    if file is None:
        return None
    if not file.parent.is_dir():
        raise typer.BadParameter(f"{file.parent} is no folder: make it, or name a file elsewhere")
    is_new = not file.exists()
    if is_new or file.is_file():  # opening and closing a named pipe would disturb its reader
        try:
            file.open("ab").close()
        except OSError as error:
            raise typer.BadParameter(f"{file} cannot be written ({error.strerror}): name a file elsewhere") from None
        if is_new:
            file.unlink()
    return file


def check_against(products: Iterable[str], names_of: Mapping[str, Sequence[str]], systems: Collection[str]) -> None:
    """Raise BadParameter if --only excludes every system of a product of --against: the options contradict."""
    for product in products:
        if not set(names_of[product]) & set(systems):
            raise typer.BadParameter(
                f"--only leaves nothing of {product}: add --only {names_of[product][0]}, or leave this out",
                param_hint="'--against'",
            )


def sizes(texts: list[str] | None) -> tuple[int, ...]:
    """Parse message sizes such as `1KiB`; return bytes."""
    try:
        found = tuple(parse_bytes(text) for text in texts or ())
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="'--size'") from None
    for size in found:
        if not 1 <= size <= limits.BENCH_MESSAGE_BYTES_MAX:
            raise typer.BadParameter(
                f"a message of {size:,} bytes; from 1 to {limits.BENCH_MESSAGE_BYTES_MAX:,} can be sent",
                param_hint="'--size'",
            )
    return found


def seconds_of(option: str, text: str, seconds_max: float) -> float:
    """Return the seconds of `text`, the value of `option`."""
    try:
        seconds = parse_duration_us(text) / 1e6
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None
    if not 0 < seconds <= seconds_max:
        raise typer.BadParameter(f"must be more than 0s, and at most {seconds_max:g}s", param_hint=f"'{option}'")
    return seconds


def bytes_of(option: str, text: str | None) -> int | None:
    """Return the bytes of `text`, the value of `option`; None if it was not given."""
    if text is None:
        return None
    try:
        size = parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"'{option}'") from None
    if not limits.MIB <= size <= limits.BENCH_CATCH_UP_BYTES_MAX:
        raise typer.BadParameter(
            f"must be from 1MiB to {limits.BENCH_CATCH_UP_BYTES_MAX:,} bytes", param_hint=f"'{option}'"
        )
    return size


Against = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="PRODUCT",
        help=f"Measure it in turn with Penstock; may be repeated. One of: {', '.join(PRODUCTS)}.",
        autocompletion=_products,
        callback=_check_product,
        show_default=False,
    ),
]
AgainstAny = Annotated[
    list[str] | None,
    typer.Option(
        "--against",
        metavar="PRODUCT",
        help=f"Measure it in turn with Penstock; may be repeated. One of: {', '.join(_all_products(''))}.",
        autocompletion=_all_products,
        callback=_check_any_product,
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="SYSTEM",
        help="Measure only this system, such as penstock-os or jetstream; may be repeated.",
        autocompletion=_systems,
        callback=_check_systems,
        rich_help_panel=RUN_PANEL,
        show_default=False,
    ),
]
Replicas = Annotated[
    int,
    typer.Option(
        "--replicas",
        metavar="1|3",
        help="Copies of the stream, each in a process of its own: three brokers, and three nats-servers.",
        callback=_check_replicas,
        rich_help_panel=RUN_PANEL,
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        metavar="N",
        min=1,
        max=_ROUNDS_MAX,
        help=f"How often each system is measured.  Default: {_ROUNDS_DEFAULT}; fewer do not show the spread.",
        rich_help_panel=RUN_PANEL,
        show_default=False,
    ),
]
Short = Annotated[
    bool,
    typer.Option("--short", help="Smaller rounds: minutes, not an hour.", rich_help_panel=RUN_PANEL),
]
JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        metavar="FILE",
        dir_okay=False,
        help="Write all results and the facts of the machine.",
        callback=_writable,
    ),
]
HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        dir_okay=False,
        help="Write a report with plots, for any browser.",
        callback=_writable,
    ),
]
Dir = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        metavar="DIR",
        exists=True,
        file_okay=False,
        writable=True,
        help="An existing folder for the logs of the run.  Default: that for temporary files, if it is on a disk.",
        rich_help_panel=RUN_PANEL,
    ),
]
