"""`penstock stream show --producers`, `--queries`: idempotent producers, and Spark queries with staged rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.terminal import output
from penstock.cli.terminal.failure import say

if TYPE_CHECKING:
    from penstock.client.append.staging import PublishedQuery
    from penstock.client.values import KnownProducer


def show(found: list[KnownProducer], *, as_json: bool) -> None:
    """Print one line per producer, the most recent append first."""
    found = sorted(found, key=lambda one: one.last_append, reverse=True)
    if as_json:
        for one in found:
            output.print_json(one._asdict())
    elif found:
        numbers = ("partition", "producer", "epoch", "last sequence", "last offset")
        table = output.table(*numbers, "last append", right=numbers)
        for one in found:
            table.add_row(*map(output.cell, (*one[:5], output.time_text(int(one.last_append.timestamp() * 1_000_000)))))
        output.console().print(table)
    else:
        say("no producer has appended in the last ten minutes", err=True)


def show_queries(found: list[PublishedQuery], *, as_json: bool) -> None:
    """Print one line per query, the most recent publish first."""
    found = sorted(found, key=lambda one: one.last_publish, reverse=True)
    if as_json:
        for one in found:
            output.print_json({**one._asdict(), "query_id": str(one.query_id)})
    elif found:
        numbers = ("partition", "batch", "pieces", "last offset")
        table = output.table("partition", "query", "batch", "pieces", "", "last offset", "last publish", right=numbers)
        for one in found:
            state = "" if one.is_complete else "unfinished"
            moment = output.time_text(int(one.last_publish.timestamp() * 1_000_000))
            values = (one.partition, str(one.query_id), one.batch_id, one.pieces, state, one.last_offset, moment)
            table.add_row(*map(output.cell, values))
        output.console().print(table)
    else:
        say("no query has published staged rows in the last seven days", err=True)
