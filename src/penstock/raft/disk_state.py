"""Read-only access to Raft's files: nothing is repaired, cut or created."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.raft.records import decode_record, read_records
from penstock.raft.snapshot_file import decode_snapshot
from penstock.raft.tasks import LOG_PATH, SNAPSHOT_PATH
from penstock.raft.values import Entry, Snapshot
from penstock.vfs import Vfs


def stored_snapshot(vfs: Vfs) -> Snapshot | None:
    """Return the snapshot, None without a file. Raise CorruptionError, RemoteError (unsupported_version), OSError."""
    data = _content(vfs, SNAPSHOT_PATH)
    return None if data is None else decode_snapshot(data, SNAPSHOT_PATH)


def stored_entries(vfs: Vfs) -> Iterator[Entry]:
    """Yield all entries up to a torn tail, including those that later ones replace. Raise as `stored_snapshot`."""
    data = _content(vfs, LOG_PATH)
    for record in () if data is None else read_records(data, LOG_PATH):
        content = decode_record(record, LOG_PATH)
        if isinstance(content, Entry):
            yield content


def _content(vfs: Vfs, path: str) -> bytes | None:
    try:
        file = vfs.open(path, read_only=True)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()
