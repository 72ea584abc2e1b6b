"""`penstock dump`: what lies in the files of a data directory, without a broker."""

from __future__ import annotations

from penstock.cli.failure import clearly
from penstock.cli.options import examples

EXAMPLES = examples("penstock dump penstock-data")


@clearly
def dump() -> None:
    """Print what is in files."""
