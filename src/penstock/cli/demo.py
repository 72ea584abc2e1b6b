"""`penstock demo`: the whole way of real events, with a broker of its own, checked to the byte.

NATS ← nats-py, as it comes from PyPI → broker → Arrow files → Penstock's client → Arrow batches → figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.failure import clearly
from penstock.cli.options import Debug, examples

EXAMPLES = examples("penstock demo", "penstock demo --rows 20000 --data-dir /tmp/penstock-demo")


@clearly
def demo(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Where the demo's broker keeps its data.")
    ] = Path("penstock-demo"),
    rows: Annotated[
        int | None, typer.Option("--rows", metavar="N", min=1, help="Only the first N flights.  Default: all 336,776.")
    ] = None,
    debug: Debug = False,
) -> None:
    """See it work: 336,776 real flights through NATS into the log and back, checked to the byte.

    Starts a broker of its own with an embedded nats-server, and stops it at the end. An earlier demo's stream in the
    same directory is deleted and made anew. Takes 10 to 30 seconds.
    """
    from penstock.cli.demo_run import run

    run(data_dir, rows)
