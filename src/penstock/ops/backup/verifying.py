"""Checks every file of a backup against the manifest, and every batch against its checksum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penstock.base.errors import CorruptionError
from penstock.ops.backup.consumers import read_consumers
from penstock.ops.backup.files import Manifest, PartitionBackup, StreamBackup, check_file, read_manifest
from penstock.ops.backup.schemas import read_schemas
from penstock.ops.backup.users import read_users
from penstock.ops.progress import Progress


class VerifiedPartition(NamedTuple):
    """Result for one partition; of several corrupt files it has the first. `verdict`: "sound" or "damaged"."""

    stream: str
    partition: int
    files: int
    log_start: int
    end: int
    rows: int
    size_bytes: int
    verdict: str
    file: str = ""
    position: int = 0
    expected: str = ""
    found: str = ""


class VerifiedUsers(NamedTuple):
    """Result for the users' file. `users` is their count; `verdict`: "sound" or "damaged"."""

    users: int
    verdict: str
    file: str = ""
    expected: str = ""
    found: str = ""
    position: int = 0


class VerifiedSchemas(NamedTuple):
    """Result for the schemas of a stream. `versions` is their count; `verdict`: "sound" or "damaged"."""

    stream: str
    versions: int
    verdict: str
    file: str = ""
    position: int = 0
    expected: str = ""
    found: str = ""


class VerifiedConsumers(NamedTuple):
    """Result for the consumers of a stream. `consumers` is their count; `verdict`: "sound" or "damaged"."""

    stream: str
    consumers: int
    verdict: str
    file: str = ""
    position: int = 0
    expected: str = ""
    found: str = ""


class VerifiedBackup(NamedTuple):
    """Result for a backup. `users` is None if it has none, or if only one stream was verified.

    `schemas` has the streams with schemas, `consumers` those with consumers.
    """

    partitions: list[VerifiedPartition]
    users: VerifiedUsers | None
    schemas: Sequence[VerifiedSchemas] = ()
    consumers: Sequence[VerifiedConsumers] = ()

    @property
    def damaged(self) -> list[VerifiedPartition | VerifiedSchemas | VerifiedConsumers | VerifiedUsers]:
        """All that is not sound."""
        everything = (*self.partitions, *self.schemas, *self.consumers, self.users)
        return [one for one in everything if one is not None and one.verdict != "sound"]


def verify_backup(folder: str | Path, stream: str | None = None, *, progress: Progress | None = None) -> VerifiedBackup:
    """Verify a backup, or one stream of it, without a broker. Nothing is written.

        found = ops.verify_backup("/backups/penstock")
        assert not found.damaged, found.damaged

    OperationalError: the folder is no backup, or its manifest is damaged. OSError.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    wanted = [entry for entry in manifest.streams if stream in (None, entry.name)]
    parts = [(entry, partition) for entry in wanted for partition in entry.partitions]
    total = sum(file.size_bytes for _, partition in parts for file in partition.files)
    found, done = [], 0
    with (progress or Progress()).step("Verifying", total) as advance:
        for entry, partition in parts:
            mistake: CorruptionError | None = None
            for file in partition.files:
                try:
                    check_file(folder, partition, file)
                except CorruptionError as error:
                    mistake = mistake or error
                done += file.size_bytes
                advance(done)
            found.append(_verdict(entry, partition, mistake))
    schemas = [_schemas(folder, entry) for entry in wanted if entry.schemas]
    consumers = [_consumers(folder, entry) for entry in wanted if entry.consumers]
    return VerifiedBackup(found, None if stream is not None else _users(folder, manifest), schemas, consumers)


def _verdict(entry: StreamBackup, partition: PartitionBackup, mistake: CorruptionError | None) -> VerifiedPartition:
    rows, size = sum(one.rows for one in partition.files), sum(one.size_bytes for one in partition.files)
    counts = (entry.name, partition.partition, len(partition.files), partition.log_start, partition.end, rows, size)
    if mistake is None:
        return VerifiedPartition(*counts, "sound")
    where = (mistake.file, mistake.position, str(mistake.expected), str(mistake.found))
    return VerifiedPartition(*counts, "damaged", *where)


def _schemas(folder: Path, entry: StreamBackup) -> VerifiedSchemas:
    versions = sum(file.versions for file in entry.schemas)
    try:
        read_schemas(folder, entry)
    except CorruptionError as error:
        where = (error.file, error.position, str(error.expected), str(error.found))
        return VerifiedSchemas(entry.name, versions, "damaged", *where)
    return VerifiedSchemas(entry.name, versions, "sound")


def _consumers(folder: Path, entry: StreamBackup) -> VerifiedConsumers:
    count = sum(file.consumers for file in entry.consumers)
    try:
        read_consumers(folder, entry)
    except CorruptionError as error:
        where = (error.file, error.position, str(error.expected), str(error.found))
        return VerifiedConsumers(entry.name, count, "damaged", *where)
    return VerifiedConsumers(entry.name, count, "sound")


def _users(folder: Path, manifest: Manifest) -> VerifiedUsers | None:
    if manifest.access is None:
        return None
    file = folder / manifest.access.path
    try:
        read_users(folder, manifest.access)
    except CorruptionError as error:
        return VerifiedUsers(manifest.access.users, "damaged", str(file), str(error.expected), str(error.found))
    return VerifiedUsers(manifest.access.users, "sound")
