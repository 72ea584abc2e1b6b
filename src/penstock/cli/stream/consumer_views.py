"""Output of `penstock consumer`: consumers as a table, in lines and as JSON; and advice about errors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock.base.errors import ErrorCode
from penstock.base.subjects import overlap
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import advising, printable, say

if TYPE_CHECKING:
    from penstock.client.consume.stream_consumers import ConsumerInfo

_NUMBERS = ("partition", "pending", "unacked", "redelivered", "waiting")
_LEFT_OUT_FIRST = ("redelivered", "waiting", "kind", "partition")


@contextmanager
def advised(stream: str | None) -> Iterator[None]:
    """Say what to do about errors of all these commands."""
    where = "STREAM" if stream is None else stream
    with (
        advising(ErrorCode.CONSUMER_NOT_FOUND, f"`penstock consumer ls {where}` shows those that there are"),
        advising(ErrorCode.CONSUMER_EXISTS, "take another name, or delete it first"),
    ):
        yield


def taking_nothing(filters: Sequence[str], subjects: Sequence[str]) -> list[str]:
    """Return the filters on which a stream with these subjects has no message."""
    return [one for one in filters if not any(overlap(one, subject) for subject in subjects)]


def consumer_row(one: ConsumerInfo) -> dict[str, str]:
    return {
        "stream": one.stream,
        "partition": str(one.partition),
        "consumer": one.name,
        "kind": _kind(one),
        "acks": one.ack_policy,
        "pending": output.count_text(one.pending),
        "unacked": output.count_text(one.ack_pending),
        "redelivered": output.count_text(one.redelivered),
        "waiting": output.count_text(one.waiting),
        "state": _state(one),
    }


def _kind(one: ConsumerInfo) -> str:
    return f"{'durable' if one.is_durable else 'ephemeral'} {'push' if one.is_push else 'pull'}"


def _state(one: ConsumerInfo) -> str:
    """Return why it delivers nothing; empty if it does."""
    if one.paused_until is not None:
        return "paused"
    return "full: waits for acks" if one.is_full else ""


def print_table(rows: list[dict[str, str]]) -> None:
    console = output.console()
    if all(row["partition"] == "0" for row in rows):
        rows = [{title: text for title, text in row.items() if title != "partition"} for row in rows]
    rows = [{title: printable(text) for title, text in row.items()} for row in rows]
    titles = output.fitting(rows, console.width, left_out_first=_LEFT_OUT_FIRST)
    table = output.table(*titles, right=_NUMBERS)
    for row in rows:
        table.add_row(*(output.cell(row[title]) for title in titles))
    console.print(table)


def told(one: ConsumerInfo) -> dict[str, Any]:
    """Return a consumer for JSON."""
    return {**one._asdict(), "is_full": one.is_full}


def show(one: ConsumerInfo, *, as_json: bool) -> None:
    if as_json:
        output.print_json(told(one))
        return
    pending_max = "" if one.ack_pending_max is None else f", at most {output.count_text(one.ack_pending_max)}"
    last = "" if one.last_delivered is None else f", last {one.last_delivered:%Y-%m-%d %H:%M:%SZ}"
    facts = {
        "consumer": f"{one.name} of stream {one.stream}" + (f", partition {one.partition}" if one.partition else ""),
        "kind": f"{_kind(one)}, acks: {one.ack_policy}",
        "created": f"{one.created:%Y-%m-%d %H:%M:%SZ}",
        "takes": ", ".join(one.filters) or "all messages",
        "state": _state_line(one),
        "delivered": f"all before offset {one.next_offset} ({output.count_text(one.deliveries)} deliveries{last})",
        "acked": "" if one.ack_policy == "none" else f"all before offset {one.acked_end}",
        "pending": f"{output.count_text(one.pending)} not delivered yet",
        "unacked": ""
        if one.ack_policy == "none"
        else f"{output.count_text(one.ack_pending)}{pending_max}; {output.count_text(one.redelivered)} delivered again",
        "waiting": f"{output.count_text(one.waiting)} requests of clients",
        "order by": one.order_by or "",
        "dead letters": _letters_line(one),
    }
    width = max(map(len, facts))
    for title, text in facts.items():
        if text:
            say(f"{title:<{width}}  {printable(text)}")
    say(f"{'config':<{width}}  {printable(json.dumps(_plain_config(one.config)))}")


def _letters_line(one: ConsumerInfo) -> str:
    if one.dead_letters is None:
        return ""
    waiting = f"; {output.count_text(one.dead_letters_waiting)} wait" if one.dead_letters_waiting else ""
    return f"to stream {one.dead_letters}{waiting}" + (f": {one.dead_letters_error}" if one.dead_letters_error else "")


def _state_line(one: ConsumerInfo) -> str:
    if one.paused_until is not None:
        from penstock.client.consume.stream_consumers import UNTIL_RESUMED

        if one.paused_until >= UNTIL_RESUMED:
            return f"paused; go on with `penstock consumer resume {one.stream} {one.name}`"
        return f"paused until {one.paused_until:%Y-%m-%d %H:%M:%SZ}"
    if one.is_full:
        return "full: it delivers nothing new until messages are acked; are its clients still there?"
    return "delivers"


def _plain_config(config: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in config.items() if value not in ("", [], {}, None)}
