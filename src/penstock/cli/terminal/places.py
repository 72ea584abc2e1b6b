"""Parses start positions as users write them: `earliest`, `42`, `-10`, `30s`, `2013-01-01T10:00Z`."""

from __future__ import annotations

from datetime import datetime

import typer

from penstock.client import places
from penstock.client.places import LastMessages as LastMessages


def parse_place(
    text: str, option: str | None = None, *, now: datetime | None = None, takes_last: bool = True
) -> places.Start:
    """Return the position that `text` names. Raise typer.BadParameter for `option`, listing the accepted forms.

    The arguments are those of `penstock.client.places.parse_place`.
    """
    try:
        return places.parse_place(text, now=now, takes_last=takes_last)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=None if option is None else f"'{option}'") from None
