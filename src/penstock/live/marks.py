"""Marks: what a leader writes to hide rows of a partition, as frozen types, and their byte form.

Rules: a mark names offsets, never a condition: to apply it needs no row. It hides and never shows again. It is the
value of an ordinary row, whose subject is its kind, so the log of the marks is replicated, verified and read as any
other. A mark has at most MARK_BYTES_MAX bytes; larger sets are split. A mark of a kind or version that is not known
here raises UnknownMarkError: it may hide rows, so rows must not be shown without it.

A mark is about the rows of the log as its leader had it. If an election lost rows, other rows have their offsets: the
first mark of a later leader epoch says in `earlier_end` where the rows that earlier marks named end.

| kind (subject)                                        | type         | behind the head                              |
|-------------------------------------------------------|--------------|----------------------------------------------|
| delete, purge, limit, rollup, expiry, compaction,     | `HideRows`   | flags (1: secure), user, rows                |
| consumed, unwanted                                    |              |                                              |
| snapshot                                              | `Snapshot`   | part, parts, end of the marks in it, counts  |
|                                                       |              | by reason, 0 or 1 and the last time to live, |
|                                                       |              | secure rows, rows                            |
| time_to_live                                          | `TimeToLive` | time (µs), below which offset                |
| decided                                               | `Decided`    |                                              |

The head: version (1 byte), leader epoch, log end, decided end, earlier end, time (µs); then, of kinds that speak of
decisions (limit, rollup, unwanted, decided, snapshot), the limit by subject (0: none), and flags: 1 if rollups were
decided, 2 if what no consumer wants was hidden.
All numbers are varints (LEB128, shortest form); text and sets have their length before them.

A snapshot of version 1 has the counts of the first six reasons; one of version 2, which is written if there are others,
has all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from penstock.base import limits
from penstock.base.errors import CorruptionError, PenstockError
from penstock.live.row_set import NONE, Reader, RowSet, varint

VERSION = 1
_VERSION_OF_ALL_COUNTS = 2  # of a snapshot
_SECURE = 1
_ROLLUPS, _INTEREST = 1, 2
_TIME_US_MAX = 2**63 - 1
_HEAD_BYTES_MAX = 256  # of all fields of a mark but its user and its sets
_USER_BYTES_MAX = 1_024
ROWS_BYTES_MAX = limits.MARK_BYTES_MAX - _HEAD_BYTES_MAX - _USER_BYTES_MAX
"""Encoded size of the rows of one mark: a larger set is split."""


class UnknownMarkError(PenstockError):
    """The mark is of a kind or version that a later Penstock wrote: rows must not be shown without it."""


class HideReason(StrEnum):
    """Reason why rows are hidden; the subject of the mark."""

    DELETE = "delete"
    PURGE = "purge"
    LIMIT = "limit"
    ROLLUP = "rollup"
    EXPIRY = "expiry"
    COMPACTION = "compaction"
    CONSUMED = "consumed"  # acked, in a stream with retention `workqueue` or `interest`
    UNWANTED = "unwanted"  # no consumer wanted them when they came


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeUnder:
    """State of the leader that made a mark. `at_us`: its clock."""

    leader_epoch: int
    log_end: int  # end of the rows of the data log that were committed, or are named, by then
    decided_end: int = 0  # the leader has decided on all rows of the data log before it, by `limit` and `rollups`
    earlier_end: int = limits.OFFSET_MAX  # rows that earlier marks name from there on are others by now
    at_us: int = 0
    limit: int = 0  # messages of each subject that stay; 0: all
    rollups: bool = False  # rollups take effect; without them and without a limit the mark says nothing about decisions
    interest: bool = False  # what no consumer wanted is hidden


@dataclass(frozen=True, slots=True)
class HideRows:
    """Hides rows, for good. `is_secure`: their bytes are to be erased from the files at once."""

    under: MadeUnder
    reason: HideReason
    rows: RowSet
    is_secure: bool = False
    user: str = ""  # who asked for it; empty: the stream's config did

    @property
    def kind(self) -> str:
        return self.reason.value

    def split(self) -> Iterator[HideRows]:
        """Yield marks that hide the same rows together, each of at most MARK_BYTES_MAX bytes."""
        room = limits.MARK_BYTES_MAX - _HEAD_BYTES_MAX - len(self.user.encode())
        for rows in self.rows.split(room):
            yield replace(self, rows=rows)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A part of the fold of the marks that its leader had applied when it made it. Later ones may stand before it."""

    under: MadeUnder
    part: int
    parts: int
    counts: tuple[int, ...] = field(default=(0,) * len(HideReason))  # rows hidden so far, in the order of HideReason
    expired: tuple[int, int] | None = None  # the time (µs) and the offset of the last `TimeToLive`
    rows: RowSet = NONE
    secure_rows: RowSet = NONE
    marks_end: int = 0  # offset in the companion log: the marks before it are all in the snapshot, and no others

    @property
    def kind(self) -> str:
        return "snapshot"


@dataclass(frozen=True, slots=True)
class TimeToLive:
    """All rows before the offset `below` that had expired at `at_us` are hidden by earlier marks."""

    under: MadeUnder
    at_us: int
    below: int

    @property
    def kind(self) -> str:
        return "time_to_live"


@dataclass(frozen=True, slots=True)
class Decided:
    """Hides nothing: says up to where the leader has decided."""

    under: MadeUnder

    @property
    def kind(self) -> str:
        return "decided"


Mark = HideRows | Snapshot | TimeToLive | Decided


def encode(mark: Mark) -> bytes:
    """Return the value of the mark's row; its subject is `mark.kind`."""
    under = mark.under
    head = (under.leader_epoch, under.log_end, under.decided_end, under.earlier_end, under.at_us)
    counts = mark.counts if isinstance(mark, Snapshot) else ()
    has_all = any(counts[_FIRST_COUNTS:])
    out = [bytes((_VERSION_OF_ALL_COUNTS if has_all else VERSION,)), *map(varint, head)]
    if mark.kind in _OF_DECISIONS:
        out += map(varint, (under.limit, _ROLLUPS * under.rollups | _INTEREST * under.interest))
    match mark:
        case HideRows():
            user = mark.user.encode()
            assert len(user) <= _USER_BYTES_MAX, mark.user
            out += (varint(_SECURE if mark.is_secure else 0), varint(len(user)), user, *_set(mark.rows))
        case Snapshot():
            out += map(
                varint, (mark.part, mark.parts, mark.marks_end, *(counts if has_all else counts[:_FIRST_COUNTS]))
            )
            expired = mark.expired
            out += map(varint, (0,) if expired is None else (1, *expired))
            out += (*_set(mark.secure_rows), *_set(mark.rows))
        case TimeToLive():
            out += map(varint, (mark.at_us, mark.below))
        case Decided():
            pass
    value = b"".join(out)
    assert len(value) <= limits.MARK_BYTES_MAX, len(value)
    return value


def _set(rows: RowSet) -> tuple[bytes, bytes]:
    data = rows.encode()
    return varint(len(data)), data


def decode(kind: str, value: bytes) -> Mark:
    """Read the mark of a row with this subject. UnknownMarkError; CorruptionError, with the position in `value`."""
    if len(value) > limits.MARK_BYTES_MAX:
        raise CorruptionError("", 0, f"a mark of at most {limits.MARK_BYTES_MAX} bytes", f"one of {len(value)}")
    reader = Reader(value, "a mark")
    version = reader.byte()
    has_all = kind == "snapshot" and version == _VERSION_OF_ALL_COUNTS
    if not (version == VERSION or has_all) or kind not in _KINDS:
        what = f"a mark of kind {kind!r}" if kind not in _KINDS else f"a mark {kind!r} of version {version}"
        raise UnknownMarkError(f"{what} is not known here, and may hide rows: upgrade this broker")
    epoch, log_end, decided_end, earlier_end = (
        reader.number(most) for most in (2**32 - 1, limits.OFFSET_MAX, limits.OFFSET_MAX, limits.OFFSET_MAX)
    )
    at_us = reader.number(_TIME_US_MAX)
    limit = reader.number(limits.MESSAGES_PER_SUBJECT_MAX) if kind in _OF_DECISIONS else 0
    flags = reader.number(_ROLLUPS | _INTEREST) if kind in _OF_DECISIONS else 0
    under = MadeUnder(
        leader_epoch=epoch,
        log_end=log_end,
        decided_end=decided_end,
        earlier_end=earlier_end,
        at_us=at_us,
        limit=limit,
        rollups=bool(flags & _ROLLUPS),
        interest=bool(flags & _INTEREST),
    )
    mark: Mark
    if kind == "snapshot":
        mark = _snapshot(reader, under, len(HideReason) if has_all else _FIRST_COUNTS)
    elif kind == "time_to_live":
        mark = TimeToLive(under, reader.number(_TIME_US_MAX), reader.number(limits.OFFSET_MAX))
    elif kind == "decided":
        mark = Decided(under)
    else:
        is_secure = bool(reader.number(_SECURE))
        user = reader.text(_USER_BYTES_MAX)
        mark = HideRows(under, HideReason(kind), _rows(reader), is_secure, user)
        if not mark.rows or mark.rows.end > log_end:
            raise reader.wrong(f"rows before the log's end, {log_end}", f"rows up to {mark.rows.end}")
    reader.finish()
    return mark


def _snapshot(reader: Reader, under: MadeUnder, counted: int) -> Snapshot:
    part = reader.number(limits.SNAPSHOT_PARTS_MAX - 1)
    parts = reader.number(limits.SNAPSHOT_PARTS_MAX)
    if part >= parts:
        raise reader.wrong(f"a part of {parts}, counted from 0", str(part))
    marks_end = reader.number(limits.OFFSET_MAX)
    counts = (*(reader.number(limits.OFFSET_MAX) for _ in range(counted)), *(0,) * (len(HideReason) - counted))
    expired = None
    if reader.number(1):
        expired = reader.number(_TIME_US_MAX), reader.number(limits.OFFSET_MAX)
    secure_rows = _rows(reader)
    return Snapshot(under, part, parts, counts, expired, _rows(reader), secure_rows, marks_end)


def _rows(reader: Reader) -> RowSet:
    length = reader.number(limits.MARK_BYTES_MAX)
    position = reader.position
    try:
        return RowSet.decode(reader.take(length))
    except CorruptionError as error:
        raise CorruptionError("", position + error.position, error.expected, error.found) from None


_FIRST_COUNTS = tuple(HideReason).index(HideReason.CONSUMED)
_OF_DECISIONS = frozenset(
    {HideReason.LIMIT.value, HideReason.ROLLUP.value, HideReason.UNWANTED.value, "decided", "snapshot"}
)
_KINDS = frozenset({*(reason.value for reason in HideReason), "snapshot", "time_to_live", "decided"})
