"""Creates streams from a backup, with their offsets, times, schemas, groups and consumers; and its users.

Rules: every check comes before the first change. A stream is paused, and deletion in it suspended, until it has all
rows and was compared with the backup; then it gets the offsets of groups, its consumers, and its intake. One whose
retention is `interest` gets that behind its consumers: without them it would show no row. Schemas come before the rows:
rows that are put are not checked, and the leaders know the schemas when the stream accepts messages, which may be. A
run that was interrupted is continued.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.base.config import Intake, StreamConfig, SuspendDeletion
from penstock.base.errors import OperationalError
from penstock.base.units import counted, format_duration_ms
from penstock.client.blocking.client import Client
from penstock.client.bulk.placing import Placer
from penstock.client.errors import StreamNotFound
from penstock.client.read.batches import messages_of
from penstock.commitlog.verify.checksums import RangeSums
from penstock.messages import StreamInfo, UserExport
from penstock.ops import carried_consumers, carried_schemas, placed_rows
from penstock.ops.backup import consumers as backup_consumers
from penstock.ops.backup import files as backup_files
from penstock.ops.backup import schemas as backup_schemas
from penstock.ops.backup import users as backup_users
from penstock.ops.backup.files import BackupFile, Manifest, PartitionBackup, StreamBackup
from penstock.ops.backup.restored_already import ExistingStream, RestoredState
from penstock.ops.backup.users import RestoredUsers
from penstock.ops.carried_consumers import CarriedConsumer
from penstock.ops.errors import ArgumentError
from penstock.ops.placed_rows import FutureTimes, RowTimes
from penstock.ops.progress import Progress

if TYPE_CHECKING:
    from penstock.schemas.registry import SchemaVersion


class RestoredStream(NamedTuple):
    """Result for one stream. `rows` were put or were there before; `intake` is what it has now."""

    stream: str
    rows: int
    partitions: int
    groups: int
    intake: str
    consumers: int = 0


class Restored(NamedTuple):
    """Result of a restore. `users` is None if users were not asked for; a complete stream has no entry."""

    streams: list[RestoredStream]
    users: RestoredUsers | None


class RestoreOptions(NamedTuple):
    """The streams of a backup to restore, and how.

    `stream`: only this one, with the new name `name`, which leaves it paused. `replicas`: default as in the backup, at
    most the number of brokers. `paused`: leave the streams paused. `without_max_age`: give them no max_age, which would
    delete older rows at once. `future_times`: see `FutureTimes`. `streams` False: only users. `users`: the users, too.
    `consumers`: the consumers of JetStream's API, too.
    """

    stream: str | None = None
    name: str | None = None
    replicas: int | None = None
    paused: bool = False
    without_max_age: bool = False
    future_times: FutureTimes | str = "keep"
    streams: bool = True
    users: bool = False
    consumers: bool = True

    def check(self) -> None:
        """Raise ArgumentError for options of streams if there are to be none, and for one name of several streams."""
        if not self.streams:
            of_streams = {"--stream": self.stream, "--as": self.name, "--replicas": self.replicas}
            flags = {"--paused": self.paused or None, "--without-max-age": self.without_max_age or None}
            if given := [flag for flag, value in {**of_streams, **flags}.items() if value is not None]:
                raise ArgumentError(f"--users-only makes no streams, so {given[0]} has no meaning")
        if self.name is not None and self.stream is None:
            raise ArgumentError("--as is for one stream: say which with --stream")


class Restore:
    """The restoration of a backup.

    plan = ops.Restore("/backups/penstock").plan(client)
    for one in plan.run().streams:
        print(one.stream, one.rows)
    """

    def __init__(self, folder: str | Path, options: RestoreOptions | None = None) -> None:
        """Read the manifest of the backup in `folder`, and choose from it; by default all streams and no users.

        ArgumentError: the options do not fit together. OperationalError: it is no backup, or has no such stream or no
        users. CorruptionError: the file of users. OSError.
        """
        self.folder = Path(folder)
        self._options = options or RestoreOptions()
        self._options.check()
        self._manifest = backup_files.read_manifest(self.folder)
        self._users = self._users_of_backup() if self._options.users else None
        self._entries = self._chosen(self._options.stream) if self._options.streams else []

    def _users_of_backup(self) -> list[UserExport]:
        if self._manifest.access is None:
            raise OperationalError(
                f"{self.folder} has no users: there were none, or it is of single streams (--stream)"
            )
        return backup_users.read_users(self.folder, self._manifest.access)

    def _chosen(self, name: str | None) -> list[StreamBackup]:
        names = sorted({one.name for one in self._manifest.streams})
        if self._users is None and name is None and not names:
            raise OperationalError(f"{self.folder} has no streams: --users-only makes the users that it has")
        if name is not None and name not in names:
            raise OperationalError(f"{self.folder} has no stream {name}; it has {', '.join(names) or 'none at all'}")
        found = [self._manifest.stream(one) for one in names if name in (None, one)]
        chosen = [one for one in found if one is not None]
        # Encrypted streams first: brokers without keys reject them, and then no other stream was created yet.
        return sorted(chosen, key=lambda one: not one.config.is_encrypted)

    def plan(self, client: Client, *, timeout: float = 10.0, progress: Progress | None = None) -> RestorePlan:
        """Check the cluster and every file that is needed. Nothing is changed yet.

        OperationalError: a stream of that name holds other rows, or the cluster has no administrator to make users.
        CorruptionError: a file differs from the manifest. OSError.
        """
        target = _Target(client, self.folder, self._options, timeout, progress or Progress())
        return RestorePlan(target, self._manifest, self._entries, self._users)


class RestorePlan:
    """A restore that was checked, and has changed nothing yet: `run` does it.

    `administrators` are the names of the users to create with the admin rule; a backup does not prove who wrote it.
    """

    def __init__(
        self, target: _Target, manifest: Manifest, entries: list[StreamBackup], users: list[UserExport] | None
    ) -> None:
        self._target = target
        self._manifest = manifest
        self._users = users
        client, timeout_s = target.client, target.timeout_s
        status = client.status(timeout=timeout_s)
        if users is not None:
            backup_users.check_target(client, timeout_s)
        brokers, choice = max(1, len(status.brokers)), FutureTimes(target.options.future_times)
        jobs = [_Job(target, entry, brokers, RowTimes.of(choice, status)) for entry in entries]
        self._jobs = [job for job in jobs if not job.is_done()]
        self._there = [job.there() for job in self._jobs]
        self._check_files()
        self.administrators = [] if users is None else backup_users.administrators(client, users, timeout_s)

    def _check_files(self) -> None:
        """Verify every file that is still needed before anything is created from it. Raise CorruptionError."""
        files = [one for job, info in zip(self._jobs, self._there, strict=True) for one in job.needed(info)]
        total = sum(file.size_bytes for _, file in files)
        with self._target.progress.step("Verifying", total, noun="bytes") as advance:
            done = 0
            for part, file in files:
                backup_files.check_file(self._target.folder, part, file)
                done += file.size_bytes
                advance(done)
        for job in self._jobs:
            job.schemas()
            job.consumers()

    def run(self) -> Restored:
        """Create streams and users, and put the rows. RemoteError, OperationalError: run a new plan to continue."""
        users = self.create()
        return Restored(self.fill(), users)

    def create(self) -> RestoredUsers | None:
        """Do the first half of `run`: create the streams, paused, and the missing users."""
        self._there = [info or job.made() for job, info in zip(self._jobs, self._there, strict=True)]
        if self._users is None:
            return None
        return backup_users.restore_users(self._target.client, self._users, self._target.timeout_s)

    def fill(self) -> list[RestoredStream]:
        """Do the second half of `run`: put the rows, compare them, and let the streams accept messages."""
        restored = []
        total = sum(part.end - part.log_start for job in self._jobs for part in job.entry.partitions)
        with self._target.progress.step("Restoring", total, noun="offsets") as advance:
            for job, info in zip(self._jobs, self._there, strict=True):
                assert info is not None, "`create` comes first"
                info = job.altered(info)
                job.register_schemas(info)
                with job.deletion_suspended(info):
                    rows = job.fill(info, advance)
                restored.append(job.finish(info, rows, self._manifest))
        return restored


class _Target(NamedTuple):
    """The cluster that is restored into, and the backup."""

    client: Client
    folder: Path
    options: RestoreOptions
    timeout_s: float
    progress: Progress


class _Job(NamedTuple):
    """Restores one stream."""

    target: _Target
    entry: StreamBackup
    brokers: int
    times: RowTimes

    @property
    def client(self) -> Client:
        return self.target.client

    @property
    def timeout_s(self) -> float:
        return self.target.timeout_s

    @property
    def name(self) -> str:
        """The stream's name in the target."""
        return self.target.options.name or self.entry.name

    def is_done(self) -> bool:
        """True if an earlier run has completed it, so that this one does not change it; notes that."""
        with suppress(StreamNotFound):
            there = self.client.stream(self.name, timeout=self.timeout_s)
            if there.intake == Intake.PAUSED:
                return False
            held, note = self._existing(there).state(self.entry), self.target.progress.note
            if held is RestoredState.ALL:
                text = f"note: stream {there.name} is {there.intake}, and already has all rows of the backup"
                note(f"{text}: it is left as it is")
            elif held is RestoredState.REST:
                text = f"note: stream {there.name} is {there.intake}, and has only the last rows of the backup"
                text = f"{text}: the earlier ones were deleted, but not by its current limits. It is left as it is"
                note(f"{text}. To have all of it, restore under another name (--stream, --as)")
            elif held is RestoredState.EXPIRED:
                text = f"note: stream {there.name} is {there.intake}, and goes as far as the backup"
                text = f"{text}, but its limits have deleted the backup's rows: it is left as it is"
                hint = "restore under another name (--stream, --as) with --without-max-age"
                note(f"{text}. To have them, {hint}")
            return held is not RestoredState.NOTHING
        return False

    def _existing(self, there: StreamInfo) -> ExistingStream:
        timeout_s = max(self.timeout_s, placed_rows.PUT_TIMEOUT_S)
        return ExistingStream(self.client, self.target.folder, there, self.times, timeout_s)

    def there(self) -> StreamInfo | None:
        """Return the existing stream, or None. Raise OperationalError if it cannot be the one to restore."""
        with suppress(StreamNotFound):
            there = self.client.stream(self.name, timeout=self.timeout_s)
            self._check(there)
            return there
        return None

    def needed(self, there: StreamInfo | None) -> list[tuple[PartitionBackup, BackupFile]]:
        """Return the files with missing rows. Raise OperationalError if existing rows differ from the backup's."""
        found: list[tuple[PartitionBackup, BackupFile]] = []
        for partition in self.entry.partitions:
            end = 0
            if there is not None:
                placer = self._placer(there, partition)
                self._check_beginning(there, partition, placer)
                end = placer.end
            found += [(partition, file) for file in partition.files if file.end_offset > end]
        return found

    def _placer(self, info: StreamInfo, partition: PartitionBackup) -> Placer:
        timeout_s = max(self.timeout_s, placed_rows.PUT_TIMEOUT_S)
        return Placer(self.client, info, partition.partition, timeout=timeout_s)

    def made(self) -> StreamInfo:
        """Create the stream, paused."""
        progress = self.target.progress
        return placed_rows.create_target(self.client, self._config(), self.timeout_s, progress, source="the backup")

    def schemas(self) -> list[SchemaVersion]:
        """Return the schemas of the stream in the backup. CorruptionError: a file of them."""
        return backup_schemas.read_schemas(self.target.folder, self.entry)

    def consumers(self) -> list[CarriedConsumer]:
        """Return the consumers of the stream in the backup, if they are wanted. CorruptionError: a file of them."""
        wanted = self.target.options.consumers
        return backup_consumers.read_consumers(self.target.folder, self.entry) if wanted else []

    def register_schemas(self, info: StreamInfo) -> None:
        """Register the schemas that the stream lacks; note what is refused."""
        note = self.target.progress.note
        carried_schemas.register_schemas(self.client, info, self.schemas(), self.timeout_s, note)

    def altered(self, info: StreamInfo) -> StreamInfo:
        """Return the stream as it is now: others may have altered it while earlier ones were filled."""
        now = self.client.stream(info.name, timeout=self.timeout_s)
        return now if now.stream_id == info.stream_id else info  # of one that was deleted, the next request says so

    @contextmanager
    def deletion_suspended(self, info: StreamInfo) -> Iterator[None]:
        """Suspend deletion meanwhile; report then how much max_age deletes."""
        changes = {"max_age_ms": None} if self.target.options.without_max_age else {}
        with placed_rows.deletion_suspended(self.client, info, self.timeout_s, self.target.progress, **changes):
            yield
            self._tell_age(info, None if changes else info.config.max_age_ms)

    def _config(self) -> StreamConfig:
        config, replicas = self.entry.config, self.target.options.replicas
        wanted = config.replicas or 1 if replicas is None else replicas
        count = wanted if replicas is not None else min(wanted, self.brokers)
        if count < wanted:
            text = f"note: {self.entry.name} had {wanted} replicas; there are {self.brokers} brokers: it gets {count}"
            self.target.progress.note(text)
        observers = min(config.observers, max(0, self.brokers - count))
        min_isr = None if config.min_isr is None or config.min_isr > count else config.min_isr
        fields = {"name": self.name, "replicas": count, "min_isr": min_isr, "observers": observers}
        limits = placed_rows.NO_LIMITS if self.entry.intake is Intake.SEALED else {}
        return placed_rows.shown_config(msgspec.structs.replace(config, **fields, **limits))

    def _check(self, there: StreamInfo) -> None:
        text = f"stream {there.name} exists"
        if there.intake != Intake.PAUSED:
            text = f"{text}, is {there.intake}, and does not hold this backup; it was not changed"
            raise OperationalError(f"{text}; restore under another name (--stream, --as), or delete it")
        have, had = {*there.subjects}, {*self.entry.config.subjects}
        if have != had or len(there.partitions) != len(self.entry.partitions):
            raise OperationalError(f"{text} with other subjects, or other partitions; restore under another name")

    def fill(self, info: StreamInfo, advance: Callable[[int], None]) -> int:
        """Put the missing rows and compare all; return the count of rows in the backup."""
        done = rows = 0
        for partition in self.entry.partitions:
            placer = self._placer(info, partition)
            latest_us = self._check_beginning(info, partition, placer)
            begin, held = self._kept_from(info, partition, placer), placer.end
            self._cut(info, partition, placer)
            self._fill(placer, partition, latest_us, partial(_tell, advance, done - partition.log_start))
            done += partition.end - partition.log_start
            if info.config.compact:  # may have deleted rows of earlier runs
                rows += self._compare(info, partition, begin, held, latest_us, may_lack=True)
                begin = max(begin, held)
            rows += self._compare(info, partition, begin, partition.end, latest_us)
        return rows

    def _kept_from(self, info: StreamInfo, partition: PartitionBackup, placer: Placer) -> int:
        """Return the first offset to compare. Raise OperationalError if rows are missing that no limit deleted.

        The limits may have deleted rows of earlier runs, unless none was complete: also if the last one was not.
        """
        begin = partition.log_start
        if placer.start > begin and _has_limits(info.config):
            if not self._existing(info).explains(partition, placer.start, placer.end):
                text = f"stream {info.name} begins at offset {placer.start}, and the backup at {begin}: the earlier"
                raise OperationalError(f"{text} rows were purged; restore under another name (--stream, --as)")
            begin = placer.start
        return begin

    def _batches(self, partition: PartitionBackup, start: int) -> placed_rows.Batches:
        return backup_files.batches(self.target.folder, partition, start)

    def _fill(
        self, placer: Placer, partition: PartitionBackup, latest_us: int | None, tell: Callable[[int], None]
    ) -> None:
        batches = self._batches(partition, max(placer.end, partition.log_start))
        placed_rows.put(placer, self.times.limited(self.times.counted(batches), latest_us), tell, self.times)
        if placer.end < partition.end:
            placer.begin_at(partition.end)  # the backup has no rows up to its end
        placer.give_up_before(min(partition.log_start, placer.end))

    def _cut(self, info: StreamInfo, partition: PartitionBackup, placer: Placer) -> None:
        """Cut what an interrupted `begin_at` has put, and rows that the source has deleted if no later ones follow."""
        last = placed_rows.last_row(self.client, info, partition.partition, placer, self.timeout_s)
        if last is not None and (placer.is_dummy(last) or placer.end <= partition.log_start):
            placer.give_up_before(placer.end)

    def _check_beginning(self, info: StreamInfo, partition: PartitionBackup, placer: Placer) -> int | None:
        """Raise OperationalError unless existing rows are the backup's first; return the time limit of further rows."""
        text = f"stream {info.name} has other rows than {self.target.folder}; it was not changed"
        if placer.end > partition.end:
            raise OperationalError(f"{text}; restore under another name (--stream, --as), or delete it")
        last = placed_rows.last_row(self.client, info, partition.partition, placer, self.timeout_s)
        if last is None or placer.is_dummy(last):
            return self.times.latest_us()
        for rows, _ in self._batches(partition, last.offset):
            found = next(messages_of(rows.slice(0, 1)), None)
            if found is not None:
                here_us, source_us = last.timestamp_us, found.timestamp_us
                if (last.offset, last.subject, last.value) != (found.offset, found.subject, found.value):
                    break
                if self.times.are_alike(here_us, source_us):
                    return self.times.latest_us(here_us, source_us)
                text += self.times.hint(here_us, source_us)
                break
        raise OperationalError(f"{text}; restore under another name (--stream, --as), or delete it")

    def _compare(
        self,
        info: StreamInfo,
        partition: PartitionBackup,
        begin: int,
        end: int,
        latest_us: int | None,
        *,
        may_lack: bool = False,
    ) -> int:
        """Compare rows in `[begin, end)` with the backup; return the backup's count. OperationalError: they differ."""
        places = (min(begin, end), end)
        sums = RangeSums(*places)
        for _, covered in placed_rows.summed(self.times.limited(self._batches(partition, begin), latest_us), sums):
            if covered >= end:
                break
        of = partition.partition
        return placed_rows.compare(self.client, info, of, sums, *places, what="the backup", may_lack=may_lack)

    def finish(self, info: StreamInfo, rows: int, manifest: Manifest) -> RestoredStream:
        """Restore the groups' offsets, the consumers, the retention, and the intake."""
        groups = [one for one in manifest.groups if one.stream_id == self.entry.stream_id]
        for group in groups:
            offsets = {int(partition): offset for partition, offset in group.offsets.items()}
            if offsets:
                self.client.groups.commit(group.group, info, offsets, timeout=self.timeout_s)
        note = self.target.progress.note
        carried = carried_consumers.restore_consumers(self.client, info, self.consumers(), self.timeout_s, note)
        placed_rows.restore_retention(self.client, info, self.entry.config, self.timeout_s)
        self.times.tell(self.target.progress, info.name)
        stays_paused = self.target.options.paused or self.target.options.name is not None
        intake = Intake.PAUSED if stays_paused else self.entry.intake
        if intake is Intake.OPEN:
            self.client.resume_stream(info, timeout=self.timeout_s)
        elif intake is Intake.READ_ONLY:
            self.client.make_read_only(info, timeout=self.timeout_s)
        elif intake is Intake.SEALED:
            self.client.seal_stream(info, timeout=self.timeout_s)
        return RestoredStream(info.name, rows, len(self.entry.partitions), len(groups), str(intake), carried)

    def _tell_age(self, info: StreamInfo, max_age_ms: int | None) -> None:
        """Note how much of an old backup max_age deletes at once, or that the restored stream has no max_age."""
        before_ms, note = self.entry.config.max_age_ms, self.target.progress.note
        if before_ms is None and max_age_ms is None:
            return
        if max_age_ms is not None and self.altered(info).config.suspend_deletion is SuspendDeletion.YES:
            return  # it deletes nothing
        if self.entry.intake is Intake.SEALED and max_age_ms is None:
            note(placed_rows.SEALED_NOTE.format(info.name))
            return
        age = format_duration_ms(max_age_ms or before_ms or 0)
        if max_age_ms is None:
            text = f"note: stream {info.name} now has no max_age, so it keeps all messages; it was {age}"
            note(f"{text}: `penstock stream alter {info.name} --max-age {age}`")
            return
        old = 0
        for partition in self.entry.partitions:
            place = timedelta(milliseconds=max_age_ms)
            found = self.client.offsets(info, place, partition=partition.partition, timeout=self.timeout_s)
            old += max(0, min(found.offset, partition.end) - partition.log_start)
        if old:
            text = f"note: stream {info.name} keeps messages for {age}"
            text = f"{text}, and {counted(old, 'offset')} of the backup are older: they are deleted now"
            note(f"{text}. Restore with --without-max-age to have them")


def _has_limits(config: StreamConfig) -> bool:
    """True if the stream's limits may have deleted rows."""
    is_limited = any(getattr(config, field) != off for field, off in placed_rows.NO_LIMITS.items())
    return is_limited or config.subject_limit is not None


def _tell(advance: Callable[[int], None], before: int, end: int) -> None:
    advance(before + end)
