"""A lake as a Delta table. The driver commits with `deltalake`, without Delta's Java library.

Rules: the end of each partition and its leader epoch are transaction identifiers in the table's log (`txn`: an
application and its version), so they become durable with the files and stay in the table. If two jobs commit the same
partition at the same time, Delta refuses the second commit. `deltalake` does not sync the log; `commit` and
`finish` do.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.base.errors import CorruptionError, OperationalError
from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.folder import OvertakenError, sync_file, sync_up
from penstock.lake.tables.table import Commit, LakeFile, Range, check_new

_PARTITIONED_BY = ["date", "topic"]
_INSTEAD = "Put its files back from a backup of the folder, or archive elsewhere."
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_VERSION_DIGITS = 20  # the name of each file of the log begins with its version


class DeltaLake:
    """`Table` as a Delta table. `columns`: of its files."""

    def __init__(self, root: Path, columns: pa.Schema | None) -> None:
        self._root = str(root)
        self._synced_version = -1  # of the log: its files up to this version are on disk
        self._schema = pa.schema([*(columns or ()), pa.field("date", pa.date32())])

    def drop_staged(self) -> None:
        """Do nothing: the format's own tools remove files that no commit names."""

    def finish(self) -> None:
        """Sync the log: the last job may have been killed between its commit and the sync."""
        if (table := self._open()) is not None:
            self._sync(table.version())

    def _sync(self, version: int) -> None:
        """Sync the files of the log up to a version, from the newest checkpoint on."""
        log = Path(self._root) / "_delta_log"
        files = [one for one in log.iterdir() if one.name[:_VERSION_DIGITS].isdigit()]
        newest = max((_version(one) for one in files if ".checkpoint." in one.name), default=-1)
        first = max(newest, self._synced_version + 1)
        for file in (log / "_last_checkpoint", *(one for one in files if _version(one) >= first)):
            with suppress(FileNotFoundError):  # deltalake deletes old files
                sync_file(file)
        sync_up([log], Path(self._root))
        self._synced_version = version

    def _open(self) -> Any | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            return DeltaTable(self._root) if DeltaTable.is_deltatable(self._root) else None
        except (DeltaError, ValueError) as error:
            log = str(Path(self._root) / "_delta_log")
            found = f"what deltalake says of it: {_text(error)}"
            raise CorruptionError(log, 0, "the log of a Delta table", found, advice=_INSTEAD) from error

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        """Return the ends from the table's transaction identifiers."""
        return {} if (table := self._open()) is None else _ends(table, keys)

    def commit(self, commit: Commit) -> None:
        """Commit as one version of the table."""
        from deltalake import CommitProperties, DeltaTable, Transaction
        from deltalake.exceptions import CommitFailedError, DeltaError
        from deltalake.transaction import AddAction

        table = self._open()
        if table is None:
            DeltaTable.create(self._root, self._schema, mode="ignore", partition_by=_PARTITIONED_BY)
            table = DeltaTable(self._root)
        if not check_new(self._root, _ends(table, commit.ends), commit):
            return
        now_ms = int(time.time() * 1_000)
        added: list[Any] = [
            AddAction(
                one.path, one.size_bytes, {"date": one.date, "topic": one.topic}, now_ms, True, json.dumps(_stats(one))
            )
            for one in commit.files
        ]
        moved = {key: end for key, end in commit.ends.items() if end != commit.begins.get(key)}
        transactions = [
            one
            for key, end in sorted(moved.items())
            for one in (
                Transaction(_application(key), end.offset),
                Transaction(_epoch_application(key), end.leader_epoch),
            )
        ]
        try:
            table.create_write_transaction(
                added,
                "append",
                self._schema,
                partition_by=_PARTITIONED_BY,
                commit_properties=CommitProperties(app_transactions=transactions),
            )
        except CommitFailedError as error:
            raise OvertakenError(f"{self._root}: another job has committed at the same time: {_text(error)}") from error
        except DeltaError as error:
            raise OperationalError(f"{self._root} cannot be committed to: {_text(error)}") from error
        self._sync(table.version())

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Return the files of the newest version. Their ranges are bounds from statistics, not exact."""
        wanted = None if topics is None else set(topics)
        if (table := self._open()) is None:
            return []
        found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        return [_file(one) for one in found if wanted is None or one["partition.topic"] in wanted]


def _text(error: Exception) -> str:
    """Return an error's text without deltalake's colours and its stack trace."""
    return _COLOUR.sub("", str(error)).partition("\n   0: ")[0].strip()


def _version(file: Path) -> int:
    """Return the version of a file of the log."""
    return int(file.name[:_VERSION_DIGITS])


def _application(key: Key) -> str:
    return f"penstock/{key.stream}/{key.partition}"


def _epoch_application(key: Key) -> str:
    return f"{_application(key)}/epoch"


def _ends(table: Any, keys: Iterable[Key]) -> dict[Key, Position]:
    found = {key: table.transaction_version(_application(key)) for key in keys}
    return {
        key: Position(int(end), int(table.transaction_version(_epoch_application(key)) or 0))
        for key, end in found.items()
        if end is not None
    }


def _stats(one: LakeFile) -> dict[str, Any]:
    least = {"offset": min(part.start for part in one.ranges), "partition": one.ranges[0].partition}
    most = {"offset": max(part.end for part in one.ranges) - 1, "partition": one.ranges[-1].partition}
    nulls = {"offset": 0, "partition": 0}
    return {"numRecords": one.rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _file(one: dict[str, Any]) -> LakeFile:
    start, last = one.get("min.offset"), one.get("max.offset")
    first, final = one.get("min.partition"), one.get("max.partition")
    partitions = range(first, final + 1) if first is not None and final is not None else ()
    ranges = tuple(Range(number, start or 0, 2**63 - 1 if last is None else last + 1) for number in partitions)
    date, topic, count = str(one["partition.date"]), one["partition.topic"], one["num_records"] or 0
    return LakeFile(one["path"], topic, date, count, one["size_bytes"], ranges)
