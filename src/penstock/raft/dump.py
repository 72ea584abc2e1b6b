"""Raft's files as rows for people: the output of `penstock dump`.

Rules: nothing is changed. Unreadable parts become a row that says what is wrong and where (key `damage`). A row's
`data` is the application's, as bytes; its `term` is a text, because the number alone says nothing to people.

| file name                 | rows                     |
|---------------------------|--------------------------|
| `log`, `log.new`          | one per record           |
| `snapshot`, `snapshot.new` | one                     |
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.base.errors import CorruptionError, RemoteError
from penstock.raft.membership import decode_membership
from penstock.raft.records import LogRecord, decode_record, read_records
from penstock.raft.snapshot_file import decode_snapshot
from penstock.raft.terms import term_text
from penstock.raft.values import EntryKind, HardState, RaftMembership

Row = dict[str, object]


def file_rows(data: bytes, name: str) -> Iterator[Row]:
    """Yield the rows of a file with that name; raise ValueError if it is not a Raft file name."""
    if name in ("log", "log.new"):
        return _log_rows(data, name)
    if name in ("snapshot", "snapshot.new"):
        return _snapshot_rows(data, name)
    raise ValueError(f"{name}: not a file of Raft's")


def _log_rows(data: bytes, path: str) -> Iterator[Row]:
    end_position = 0
    try:
        for record in read_records(data, path):
            end_position = record.end_position
            yield _record_row(record, path)
    except (CorruptionError, RemoteError) as error:
        yield {"position": end_position, "damage": str(error)}
        return
    if end_position < len(data):
        # A running broker may be writing it at this moment; a start cuts it and keeps the bytes.
        yield {"position": end_position, "damage": f"{len(data) - end_position} bytes of an incomplete record"}


def _record_row(record: LogRecord, path: str) -> Row:
    content = decode_record(record, path)
    row: Row = {"position": record.position, "number": record.number}
    if isinstance(content, HardState):
        row |= {"record": "hard state", "term": term_text(content.term), "vote": content.vote}
        return {**row, "commit": content.commit}
    if isinstance(content, tuple):
        index, term, has_snapshot = content
        return {**row, "record": "base", "index": index, "term": term_text(term), "has_snapshot": has_snapshot}
    what = content.kind.name.lower()
    if content.kind is EntryKind.MEMBERSHIP:
        try:
            what = _members_text(decode_membership(content.data))
        except msgspec.DecodeError as error:
            return {"position": record.position, "damage": f"an invalid membership: {error}"}
    row |= {"record": "entry", "index": content.index, "term": term_text(content.term), "what": what}
    return {**row, "data": content.data if content.kind is EntryKind.COMMAND else b""}


def _snapshot_rows(data: bytes, path: str) -> Iterator[Row]:
    try:
        snapshot = decode_snapshot(data, path)
    except (CorruptionError, RemoteError) as error:
        yield {"position": 0, "damage": str(error)}
        return
    row: Row = {"index": snapshot.index, "term": term_text(snapshot.term)}
    yield {**row, "what": _members_text(snapshot.membership), "size_bytes": len(snapshot.data)}


def _members_text(membership: RaftMembership) -> str:
    voters, learners = (", ".join(map(str, ids)) or "none" for ids in (membership.voters, membership.learners))
    return f"voters {voters}; learners {learners}"
