"""Copies the new committed messages of streams into a backup; also schemas, consumers, offsets of groups and users."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple, Self

import penstock
from penstock.base.config import Intake, StreamConfig
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import are_different_clusters
from penstock.client.blocking.client import Client
from penstock.client.bulk.raw_batches import raw_batches
from penstock.client.errors import LogTruncated
from penstock.client.values import LATEST
from penstock.messages import StreamInfo, UserExport
from penstock.ops import carried_consumers, carried_schemas
from penstock.ops.backup import consumers as backup_consumers
from penstock.ops.backup import schemas as backup_schemas
from penstock.ops.backup import users as backup_users
from penstock.ops.backup.files import (
    FILE_BYTES,
    MANIFEST,
    FileWriter,
    GroupBackup,
    Manifest,
    PartitionBackup,
    StreamBackup,
    alone,
    is_open_to_others,
    private_folder,
    read_manifest,
    write_manifest,
)
from penstock.ops.errors import StoppedError
from penstock.ops.progress import Progress


class BackedUpStream(NamedTuple):
    """Counts of what one run added for a stream. `offsets` counts gaps, too. `consumers`: those that it has there."""

    stream: str
    rows: int
    size_bytes: int
    offsets: int
    consumers: int = 0


class BackedUp(NamedTuple):
    """Result of one run. `users`: count of users in the backup; None if they were not backed up."""

    streams: list[BackedUpStream]
    users: int | None


class Backup:
    """A backup that is written: a folder, locked against other runs.

        with penstock.connect() as client, ops.Backup("/backups/penstock") as backup:
            done = backup.add(client)
        print(sum(one.rows for one in done.streams))

    Raises on entry OperationalError if another run holds the lock, if the folder holds other files, or if its manifest
    is damaged; ValueError if it is the data directory of a broker; OSError.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._manifest = Manifest()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if (self.folder / "penstock.json").exists():
            text = f"{self.folder} is the data directory of a broker: give another folder for the backup"
            raise ValueError(f"{text}; streams come from the broker itself (--server)")
        try:
            private_folder(self.folder)
        except OSError as error:
            raise OperationalError(f"cannot write the backup to {self.folder}: {error.strerror or error}") from error
        with ExitStack() as stack:
            stack.enter_context(alone(self.folder))
            if (self.folder / MANIFEST).exists():
                self._manifest = read_manifest(self.folder)
            elif any(self.folder.iterdir()):
                text = f"{self.folder} is not empty, and no backup: give a new folder, or that of a backup"
                raise OperationalError(text)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(
        self,
        client: Client,
        streams: Sequence[str] | None = None,
        *,
        consumers: bool = True,
        timeout: float = 10.0,
        progress: Progress | None = None,
        stop: threading.Event | None = None,
    ) -> BackedUp:
        """Add what is new: rows, group offsets and schemas of `streams`, or those of all streams, and all users.

        `consumers`: also the consumers of JetStream's API; False: those of earlier runs stay in the backup as they are.
        An interrupted run keeps its complete files, and the next one continues. If `stop` is set, the run ends soon,
        with StoppedError. StreamNotFound. OperationalError: the
        backup is of another cluster, a stream was truncated below its backup, or there is nothing to back up.
        """
        run = _Run(client, self.folder, self._manifest, timeout, progress or Progress(), stop, consumers)
        return run.add(streams)


class _Place(NamedTuple):
    """A partition's offsets in the cluster and in the backup."""

    partition: PartitionBackup
    log_start: int
    committed_end: int

    @property
    def begin(self) -> int:
        """The next offset to copy."""
        return max(self.partition.end, self.log_start) if self.partition.files else self.log_start

    @property
    def left(self) -> int:
        """Count of offsets to copy; negative if the log was truncated since the last run."""
        return self.committed_end - self.begin


class _Run(NamedTuple):
    """One run of a backup."""

    client: Client
    folder: Path
    manifest: Manifest
    timeout_s: float
    progress: Progress
    stop: threading.Event | None
    with_consumers: bool

    def add(self, streams: Sequence[str] | None) -> BackedUp:
        infos = self._chosen(streams)
        if not (infos or self._users()):
            raise OperationalError("there are neither streams nor users yet: nothing is to be backed up")
        self._check_cluster()
        self._warn(infos)
        self.manifest.penstock = penstock.__version__
        self._note_groups(infos)  # before the rows, so that no offset is beyond the copied rows
        entries = [(self._entry(info), info) for info in infos]
        write_manifest(self.folder, self.manifest)
        total = sum(max(0, place.left) for entry, info in entries for place in self._places(entry, info))
        copied = []
        with self.progress.step("Backing up", total, noun="offsets") as advance:
            for entry, info in entries:
                self._check_stop()
                self._copy_consumers(entry, info)  # before the rows, so that no position is beyond the copied rows
                copied.append(self._copy(entry, info, advance))
                self._copy_schemas(entry, info)
                entry.backed_up = _now()
                write_manifest(self.folder, self.manifest)
        backup_schemas.delete_unlisted(self.folder, self.manifest)
        backup_consumers.delete_unlisted(self.folder, self.manifest)
        users = None if streams else self._users()
        if users is not None:
            backup_users.write_users(self.folder, self.manifest, users, _now())
        return BackedUp(copied, None if users is None else len(users))

    def _check_stop(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise StoppedError("the backup was stopped; the next run continues")

    def _warn(self, infos: list[StreamInfo]) -> None:
        """Warn if the backup is less protected than the original: decrypted streams, a folder that others can read."""
        for info in infos:
            if info.config.is_encrypted:
                text = f"warning: stream {info.name} is encrypted on the disks of brokers; in a backup it is plain"
                self.progress.note(text)
        if is_open_to_others(self.folder):
            self.progress.note(f"warning: {self.folder} can be read by others: keep it where they cannot")

    def _users(self) -> list[UserExport] | None:
        """Return all users with their password and token verifiers; None if the broker is too old to export them."""
        try:
            return self.client.users.export(timeout=self.timeout_s)
        except RemoteError as error:
            if error.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
            self.progress.note("note: users are not backed up: the broker is older than this Penstock")
            return None

    def _chosen(self, names: Sequence[str] | None) -> list[StreamInfo]:
        if names:
            return [self.client.stream(name, timeout=self.timeout_s) for name in dict.fromkeys(names)]
        return [info for info in self.client.streams(timeout=self.timeout_s) if not info.config.is_internal]

    def _check_cluster(self) -> None:
        cluster_id = self.client.cluster_id(timeout=self.timeout_s)
        if are_different_clusters(self.manifest.cluster_id, cluster_id):
            text = f"{self.folder} is a backup of cluster {self.manifest.cluster_id}, but this is cluster {cluster_id}"
            raise OperationalError(f"{text}: give another folder")
        self.manifest.cluster_id = cluster_id

    def _entry(self, info: StreamInfo) -> StreamBackup:
        """Return the stream's manifest entry, updated with its current config; a new entry if there is none."""
        fields = {name: getattr(info.config, name) for name in StreamConfig.__struct_fields__}
        found = next((one for one in self.manifest.streams if one.stream_id == info.stream_id), None)
        if found is None:
            found = StreamBackup(info.name, int(info.stream_id), StreamConfig(**fields))
            self.manifest.streams.append(found)
            self.manifest.streams.sort(key=lambda one: one.stream_id)
        found.config, found.intake = StreamConfig(**fields), Intake(info.intake)
        for number in range(len(found.partitions), max(1, len(info.partitions))):
            found.partitions.append(PartitionBackup(number))
        return found

    def _note_groups(self, infos: list[StreamInfo]) -> None:
        by_id = {int(info.stream_id): info for info in infos}
        kept = [one for one in self.manifest.groups if one.stream_id not in by_id]
        for group in self.client.groups.all(timeout=self.timeout_s):
            info = by_id.get(group.stream_id)
            if info is None:
                continue
            places = self.client.groups.offsets(group.group, info, timeout=self.timeout_s)
            offsets = {str(one.partition): one.offset for one in places if one.offset is not None}
            kept.append(GroupBackup(group.group, int(info.stream_id), offsets))
        self.manifest.groups = sorted(kept, key=lambda one: (one.stream_id, one.group))

    def _places(self, entry: StreamBackup, info: StreamInfo) -> list[_Place]:
        """Return all partitions' offsets, as their leaders report them."""
        found = []
        for partition in entry.partitions:
            at = self.client.offsets(info, LATEST, partition=partition.partition, timeout=self.timeout_s)
            found.append(_Place(partition, at.log_start, at.committed_end))
        return found

    def _copy(self, entry: StreamBackup, info: StreamInfo, advance: Callable[[int], None]) -> BackedUpStream:
        """Add the stream's new rows to the backup."""
        rows = size_bytes = offsets = 0
        for place in self._places(entry, info):
            known = len(place.partition.files)
            if place.partition.files and place.partition.end < place.log_start:
                gone = f"offsets {place.partition.end} to {place.log_start - 1} were deleted before they were backed up"
                self.progress.note(f"note: {entry.name}/{place.partition.partition}: {gone}")
            if place.left < 0:
                raise self._truncated(entry, place.committed_end)
            offsets += max(0, place.left)
            self._copy_partition(entry, info, place)
            place.partition.log_start = place.log_start
            place.partition.end = max(place.partition.end, place.committed_end)
            added = place.partition.files[known:]
            rows += sum(one.rows for one in added)
            size_bytes += sum(one.size_bytes for one in added)
            advance(offsets)
        return BackedUpStream(entry.name, rows, size_bytes, offsets, sum(file.consumers for file in entry.consumers))

    def _copy_consumers(self, entry: StreamBackup, info: StreamInfo) -> None:
        """Replace the stream's consumers."""
        if self.with_consumers:
            found = carried_consumers.read_consumers(self.client, info, self.timeout_s, self.progress.note)
            backup_consumers.write_consumers(self.folder, entry, found)

    def _copy_schemas(self, entry: StreamBackup, info: StreamInfo) -> None:
        """Replace the stream's schemas; after its rows, so that those by which they were written are there."""
        found = carried_schemas.read_schemas(self.client, info, self.timeout_s, self.progress.note)
        if found is not None:
            backup_schemas.write_schemas(self.folder, entry, found)

    def _copy_partition(self, entry: StreamBackup, info: StreamInfo, place: _Place) -> None:
        partition, writer = place.partition, None
        epoch = partition.leader_epoch if partition.files and place.begin == partition.end else None
        source = raw_batches(
            self.client,
            info,
            partition.partition,
            place.begin,
            place.committed_end,
            leader_epoch=epoch,
            timeout=self.timeout_s,
        )
        try:
            for header, data, leader_epoch in source:
                self._check_stop()
                if writer is None:
                    writer = FileWriter(self.folder, entry, partition.partition, header.base_offset)
                writer.add(header, data)
                partition.leader_epoch = leader_epoch
                if writer.size_bytes >= FILE_BYTES:
                    done, writer = writer, None
                    partition.files.append(done.finish())
                    partition.end = partition.files[-1].end_offset
                    write_manifest(self.folder, self.manifest)
            if writer is not None:
                done, writer = writer, None
                partition.files.append(done.finish())
                partition.end = partition.files[-1].end_offset
        except LogTruncated as error:
            raise self._truncated(entry, int(error.details["end_offset"])) from None
        finally:
            if writer is not None:
                writer.drop()

    def _truncated(self, entry: StreamBackup, end: int) -> OperationalError:
        text = f"stream {entry.name} was truncated to offset {end} (by a power loss?): {self.folder} has rows that it"
        return OperationalError(f"{text} lost; back it up into another folder")


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
