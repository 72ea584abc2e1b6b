"""Marks: what a replica reads from the log of a partition's hidden rows."""

from __future__ import annotations

from random import Random

from penstock.base.errors import CorruptionError
from penstock.live.live_rows import LiveRows
from penstock.live.marks import (
    Decided,
    HideReason,
    HideRows,
    MadeUnder,
    Mark,
    Snapshot,
    TimeToLive,
    UnknownMarkError,
    decode,
    encode,
)
from penstock.live.row_set import NONE, RowSet
from tests.fuzz.target import Cover, Modules, Target

_KINDS = (*(reason.value for reason in HideReason), "snapshot", "time_to_live", "decided", "forget")


def live_mark(modules: Modules, data: bytes) -> object:
    """A mark: it is refused with a place, or read as the only one that has these bytes, and folded."""
    if not data:
        return "empty"
    kind = _KINDS[data[0] % len(_KINDS)]
    try:
        mark = decode(kind, data[1:])
    except (CorruptionError, UnknownMarkError) as error:
        return f"{type(error).__name__} {getattr(error, 'expected', '')[:40]}"
    assert encode(mark) == data[1:]
    live = LiveRows()
    live.take(mark, len(data))
    if isinstance(mark, HideRows):
        assert live.hidden == mark.rows
        assert (
            sum(end - begin for begin, end in live.hidden.runs())
            == live.hidden.count
            == live.counts[[*HideReason].index(mark.reason)]
        )
    return type(mark).__name__


def _made_rows(chance: Random) -> RowSet:
    base = int(chance.random() * 2**40)
    if chance.random() < 0.1:
        return RowSet.of(range(base, base + 10_000, 2))
    runs = [(base + n * 1_000, base + n * 1_000 + 1 + int(chance.random() * 80_000)) for n in range(5)]
    return RowSet.of_runs(runs[: int(chance.random() * 6)])


def made_mark(chance: Random) -> bytes:
    """A sound mark of any kind."""
    rows = _made_rows(chance)
    under = MadeUnder(leader_epoch=int(chance.random() * 100), log_end=rows.end, decided_end=3, at_us=1)
    number = int(chance.random() * len(_KINDS))
    marks: tuple[Mark, ...] = (
        Snapshot(under, 0, 1, rows=rows, secure_rows=NONE, expired=(3, 4)),
        TimeToLive(under, 7, 8),
        Decided(under),
        Decided(under),
    )
    reasons = list(HideReason)
    mark = HideRows(under, reasons[number], rows, user="ada") if number < len(reasons) else marks[number - len(reasons)]
    return bytes((number,)) + encode(mark)


TARGETS: tuple[Target, ...] = (
    Target(
        "live_mark",
        live_mark,
        made_mark,
        (
            Cover("penstock.live.marks", ("decode", "_snapshot", "_rows")),
            Cover("penstock.live.row_set", ("Reader", "_SpanReader", "RowSet.decode")),
        ),
    ),
)
