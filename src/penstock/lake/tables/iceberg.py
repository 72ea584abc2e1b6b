"""A lake as an Iceberg table. The driver commits with `pyiceberg`; the catalog is an SQLite file in the lake.

Rules: the end of each partition and its leader epoch are properties of the table, set in the transaction that adds the
files. A commit on an outdated snapshot fails, because the table's properties disable pyiceberg's retries. Metadata are
bounded: each commit deletes the oldest metadata files; old snapshots expire, and with them the manifests and manifest
lists that no kept snapshot refers to. No file with rows is ever deleted. Metadata are on disk before the catalog refers
to them, and the catalog's commit before `commit` returns.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.base import limits
from penstock.base.errors import ConfigError, CorruptionError, OperationalError
from penstock.lake.reading.positions import Key, Position
from penstock.lake.tables.folder import OWN, OvertakenError, sync_up
from penstock.lake.tables.table import Commit, LakeFile, Range, check_new

CATALOG, NAMESPACE, TABLE = "penstock", "penstock", "archive"
_FILE_IO = "penstock.lake.tables.synced_files.SyncedFileIO"
_END, _EPOCH = "penstock.end.", "penstock.epoch."
_PROPERTIES = {
    "commit.retry.num-retries": "0",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": str(limits.ICEBERG_METADATA_FILES_MAX),
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": str(limits.ICEBERG_MANIFESTS_MERGED),
}
_INSTEAD = "Put this file back from a backup of the folder, or archive elsewhere."
_log = logging.getLogger(__name__)


class IcebergLake:
    """`Table` as an Iceberg table. `columns`: of its files; `snapshots`: number of snapshots to keep."""

    def __init__(
        self, root: Path, columns: pa.Schema | None, *, snapshots: int = limits.ICEBERG_SNAPSHOTS_KEPT
    ) -> None:
        self._root = root
        self._snapshots_kept = snapshots
        self._columns = columns
        self._kept: Any = None

    def drop_staged(self) -> None:
        """Do nothing: the format's own tools remove files that no commit names."""

    def finish(self) -> None:
        """Sync the folders: the last job may have been killed between its commit and the sync."""
        if (self._root / OWN).exists():
            self._sync()

    def _sync(self) -> None:
        """Sync the folders. SQLite's commit is the removal of its journal, and SQLite does not sync that."""
        sync_up([folder for folder in (self._root / OWN, self._root / "metadata") if folder.exists()], self._root)

    def _catalog(self) -> Any:
        from pyiceberg.catalog.sql import SqlCatalog

        if self._kept is None:
            (self._root / OWN).mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{self._root / OWN / 'catalog.db'}"
            self._kept = SqlCatalog(CATALOG, uri=uri, warehouse=str(self._root), **{"py-io-impl": _FILE_IO})
        return self._kept

    def _open(self) -> Any | None:
        from pyiceberg.exceptions import NoSuchTableError

        catalog = self._root / OWN / "catalog.db"
        if not catalog.exists():
            return None
        try:
            table = self._catalog().load_table((NAMESPACE, TABLE))
        except NoSuchTableError:
            if any(map(_has_rows, (self._root / "metadata").glob("*.metadata.json"))):
                raise CorruptionError(str(catalog), 0, "the catalog of the table that is here", "none of it") from None
            return None
        except Exception as error:  # from SQLite, JSON or Avro, through three libraries
            if _passes(error):
                raise
            found = f"what pyiceberg says of it: {type(error).__name__}: {error}"
            raise _damaged(catalog, found) from error
        if Path(table.location().removeprefix("file://")).resolve() != self._root.resolve():
            # Its paths are absolute: a commit here would write, and delete, in the folder that this is a copy of.
            text = f"{self._root} is a copy or a moved folder of the Iceberg archive in {table.location()}"
            raise ConfigError([f"{text}, which names its files by whole paths: archive there, or into a new folder"])
        return table

    def _make(self) -> Any:
        from pyiceberg.transforms import DayTransform, IdentityTransform

        catalog = self._catalog()
        catalog.create_namespace_if_not_exists(NAMESPACE)
        with (
            catalog.create_table_transaction(
                (NAMESPACE, TABLE), schema=self._columns, location=str(self._root), properties=_PROPERTIES
            ) as making,
            making.update_spec() as spec,
        ):
            spec.add_field("timestamp", DayTransform(), "date")
            spec.add_field("topic", IdentityTransform(), "stream")
        return catalog.load_table((NAMESPACE, TABLE))

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Raise an error of SQLite that is not of the catalog's content as OperationalError."""
        from sqlalchemy.exc import OperationalError as SqlError

        try:
            yield
        except SqlError as error:
            text = f"{self._root / OWN / 'catalog.db'}: {error.orig}; if another program has it open, try again"
            raise OperationalError(text) from error

    def ends(self, keys: Iterable[Key]) -> dict[Key, Position]:
        """Return the ends from the table's properties."""
        with self._answering():
            return {} if (table := self._open()) is None else _ends(table, keys)

    def commit(self, commit: Commit) -> None:
        """Commit as one snapshot of the table."""
        with self._answering():
            self._commit(commit)

    def _commit(self, commit: Commit) -> None:
        from pyiceberg.exceptions import CommitFailedException

        table = self._open() or self._make()
        if not _PROPERTIES.items() <= table.properties.items():
            with table.transaction() as transaction:
                transaction.set_properties(_PROPERTIES)
        if not check_new(str(self._root), _ends(table, commit.ends), commit):
            return
        ends = {_property(key): str(end.offset) for key, end in sorted(commit.ends.items())}
        ends |= {_property(key, _EPOCH): str(end.leader_epoch) for key, end in sorted(commit.ends.items())}
        try:
            with _quiet(), table.transaction() as transaction:
                transaction.set_properties(ends)
                if commit.files:
                    transaction.add_files(
                        [str(self._root / one.path) for one in commit.files],
                        check_duplicate_files=False,
                    )
        except CommitFailedException as error:
            raise OvertakenError(f"{self._root}: another job has committed at the same time: {error}") from error
        self._sync()
        if len(table.snapshots()) >= 2 * self._snapshots_kept:  # not at each commit: it reads the manifest lists
            self._expire(table)

    def _expire(self, table: Any) -> None:
        """Expire the oldest snapshots, and delete the manifests and manifest lists that only they refer to."""
        from pyiceberg.exceptions import CommitFailedException

        if len(table.refs()) > 1:
            return  # a user has created branches or tags, which may need old snapshots
        snapshots = sorted(table.snapshots(), key=lambda one: one.sequence_number or 0)
        gone = snapshots[: -self._snapshots_kept][: limits.ICEBERG_SNAPSHOTS_EXPIRED_AT_ONCE]
        # A manifest that one snapshot drops is in no later one, so the oldest kept snapshot has all old ones in use.
        named = [_named_by(one, table.io) for one in snapshots[: len(gone) + 1]]
        try:
            table.maintenance.expire_snapshots().by_ids([one.snapshot_id for one in gone]).commit()
        except CommitFailedException as error:
            _log.warning("%s: snapshots are not expired now, another job has committed: %s", self._root, error)
            return
        table = table.refresh()
        for path in set().union(*named[:-1]) - named[-1]:
            Path(path.removeprefix("file://")).unlink(missing_ok=True)
        self._delete_old_versions(table)

    def _delete_old_versions(self, table: Any) -> None:
        """Delete metadata files older than all that the table refers to; earlier versions of Penstock left them."""
        named = [Path(one.metadata_file) for one in table.metadata.metadata_log] + [Path(table.metadata_location)]
        first = min(_version(one.name) for one in named)
        for file in (self._root / "metadata").glob("*.metadata.json"):
            if _version(file.name) < first:
                file.unlink(missing_ok=True)

    def files(self, topics: Iterable[str] | None = None) -> list[LakeFile]:
        """Return the files of the newest snapshot. Their ranges are bounds from statistics, not exact."""
        wanted = None if topics is None else set(topics)
        with self._answering():
            table = self._open()
        if table is None:
            return []
        schema = table.schema()
        try:
            planned = list(table.scan().plan_files())
        except Exception as error:  # from several libraries, as in `_open`
            if _passes(error):
                raise
            text = f"what pyiceberg says of it: {type(error).__name__}: {error}"
            raise CorruptionError(str(self._root / "metadata"), 0, "manifests of an Iceberg table", text) from error
        found = [_file(self._root, one.file, schema) for one in planned]
        return [one for one in found if wanted is None or one.topic in wanted]


def _named_by(snapshot: Any, io: Any) -> set[str]:
    """Return the paths of a snapshot's manifest list and manifests."""
    return {snapshot.manifest_list, *(one.manifest_path for one in snapshot.manifests(io))}


def _version(name: str) -> int:
    """Return the number at the start of a metadata file's name; OFFSET_MAX if there is none."""
    number = name.partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else limits.OFFSET_MAX


def _has_rows(metadata: Path) -> bool:
    """True if a metadata file is of a table with a commit, or is invalid.

    A run that was killed while it created the table leaves metadata without a commit.
    """
    try:
        found = json.loads(metadata.read_bytes())
        return found.get("current-snapshot-id") not in (None, -1) or any(
            one.startswith(_END) for one in found["properties"]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return True


def _damaged(catalog: Path, found: str) -> CorruptionError:
    """Return the error for a table that cannot be loaded; it names the metadata file that the catalog refers to."""
    try:
        with closing(sqlite3.connect(f"{catalog.as_uri()}?mode=ro", uri=True)) as opened:
            row = opened.execute("SELECT metadata_location FROM iceberg_tables").fetchone()
    except sqlite3.Error:
        row = None
    if row is None:
        return CorruptionError(str(catalog), 0, "the catalog of an Iceberg table", found, advice=_INSTEAD)
    file = str(row[0]).removeprefix("file://")
    return CorruptionError(file, 0, f"metadata of an Iceberg table, which {catalog} names", found, advice=_INSTEAD)


def _passes(error: Exception) -> bool:
    """True if an error is of the disk, the memory or another process's lock, and not of a file's content."""
    is_disks = isinstance(error, OSError) and error.errno is not None
    return is_disks or isinstance(error, MemoryError) or type(error).__name__ == "OperationalError"  # SQLAlchemy's


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress pyiceberg's warnings about columns without statistics: the columns for look-ups have them."""
    log = logging.getLogger("pyiceberg.io.pyarrow")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def _property(key: Key, what: str = _END) -> str:
    return f"{what}{key.stream}.{key.partition}"


def _ends(table: Any, keys: Iterable[Key]) -> dict[Key, Position]:
    found = {key: table.properties.get(_property(key)) for key in keys}
    return {
        key: Position(int(end), int(table.properties.get(_property(key, _EPOCH), 0)))
        for key, end in found.items()
        if end is not None
    }


def _file(root: Path, file: Any, schema: Any) -> LakeFile:
    from datetime import date, timedelta

    low = {name: _bound(file.lower_bounds, schema, name) for name in ("offset", "partition")}
    high = {name: _bound(file.upper_bounds, schema, name) for name in ("offset", "partition")}
    end = limits.OFFSET_MAX if high["offset"] is None else high["offset"] + 1
    first, final = low["partition"], high["partition"]
    partitions = () if first is None or final is None else range(first, final + 1)
    ranges = tuple(Range(number, low["offset"] or 0, end) for number in partitions)
    path = file.file_path.removeprefix("file://")
    day = str(date(1970, 1, 1) + timedelta(days=file.partition[0]))
    relative = str(Path(path).relative_to(root))
    return LakeFile(relative, file.partition[1], day, file.record_count, file.file_size_in_bytes, ranges)


def _bound(bounds: Any, schema: Any, name: str) -> int | None:
    from pyiceberg.conversions import from_bytes

    field = schema.find_field(name)
    raw = bounds.get(field.field_id)
    return None if raw is None else int(from_bytes(field.field_type, raw))
