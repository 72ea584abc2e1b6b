"""`penstock restore`: creates streams from a backup, with their offsets, times and groups."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer

from penstock.base.config import Intake
from penstock.base.errors import OperationalError
from penstock.base.units import format_duration_ms
from penstock.cli.messages import placed_rows
from penstock.cli.terminal import output
from penstock.cli.terminal.confirming import confirm
from penstock.cli.terminal.failure import clearly, say_note
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Json, Server, Timeout, Yes, connected, examples

if TYPE_CHECKING:
    from penstock.cli.backup.files import BackupFile, GroupBackup, Manifest, PartitionBackup, StreamBackup
    from penstock.cli.backup.users import RestoredUsers
    from penstock.client.blocking.client import Client
    from penstock.client.bulk.placing import Placer
    from penstock.messages import StreamInfo, UserExport

EXAMPLES = examples(
    "# all streams, into another cluster",
    "penstock restore /backups/penstock --server other:7422",
    "# also users; the cluster must already have an administrator",
    "penstock --credentials admin.credentials restore /backups/penstock --users --server other:7422",
    "penstock --credentials admin.credentials restore /backups/penstock --users-only --server other:7422",
    "# one stream, beside the existing one; it stays paused",
    "penstock restore /backups/penstock --stream orders --as orders-of-monday",
    "# an old one, which its max_age would delete at once",
    "penstock restore /backups/penstock --stream orders --as orders-of-march --without-max-age",
    "# rows with times in the future, from a clock that was ahead, get the current time",
    "penstock restore /backups/penstock --stream orders --future-times now",
)


class Restored(NamedTuple):
    """Result of restoring one stream."""

    stream: str
    rows: int
    partitions: int
    groups: int
    intake: str


@clearly
def restore(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A backup.")],
    stream: Annotated[
        str | None, typer.Option("--stream", metavar="NAME", help="Only this stream.  Default: all.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--as", metavar="NAME", help="With --stream: its new name. It stays paused then."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", metavar="N", min=1, help="Default: as in the backup, at most the number of brokers."
        ),
    ] = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="Leave the streams paused, so that brokers do not subscribe for them yet.")
    ] = False,
    without_max_age: Annotated[
        bool,
        typer.Option(
            "--without-max-age",
            help="Give the streams no max_age, which would delete older rows at once.",
        ),
    ] = False,
    future_times: placed_rows.FutureTimesOption = placed_rows.FutureTimes.KEEP,
    with_users: Annotated[
        bool, typer.Option("--users", help="Also create the users of the backup, before any rows.")
    ] = False,
    only_users: Annotated[
        bool, typer.Option("--users-only", help="Create the users of the backup, and no streams.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Create streams from a backup: the same rows at the same offsets, with the same times, and groups' offsets.

    Every file is verified before its stream is created, and the stream is compared with the backup at the end. You can
    interrupt the command and run it again: it continues at the end of each stream; complete streams that accept
    messages already are not changed. If a stream of that name holds anything else, the command fails and leaves it
    alone.

    With --users or --users-only, missing users are created with the same passwords, tokens, nkeys and permissions. This
    needs an administrator in the target cluster. Existing users are not changed. The command asks first if some of the
    users are administrators, because a backup does not prove who wrote it.

    A stream is paused until it is complete; then it gets its retention, and accepts messages if it did when it was
    backed up. Rows keep their times, so max_age deletes older rows at once: see --without-max-age.
    """
    from penstock.cli.backup import files as backup_files
    from penstock.cli.backup import users as backup_users

    if only_users:
        flags = {"--paused": paused or None, "--without-max-age": without_max_age or None}
        _check_only_users({"--stream": stream, "--as": name, "--replicas": replicas, **flags})
    if name is not None and stream is None:
        raise typer.BadParameter("--as is for one stream: say which with --stream")
    manifest = backup_files.read_manifest(folder)
    users = _users_of(manifest, folder) if with_users or only_users else None
    entries = [] if only_users else _chosen(manifest, stream, folder, needs_some=users is None)
    with connected(ctx, server, timeout) as (client, seconds):
        status = client.status(timeout=seconds)
        brokers = max(1, len(status.brokers))
        if users is not None:
            backup_users.check_target(client, seconds)
        # All checks come before the first change, and users are created after the streams.
        keeps = ("max_age_ms",) if without_max_age else ()
        jobs = [
            _Job(client, folder, entry, name or entry.name, replicas, brokers, seconds, keeps, times)
            for entry, times in ((entry, placed_rows.RowTimes.of(future_times, status)) for entry in entries)
        ]
        jobs = [job for job in jobs if not job.is_done()]
        there = [job.there() for job in jobs]
        _check_files(jobs, there)
        if users is not None and not yes:
            _ask(backup_users.administrators(client, users, seconds), folder)
        targets = [info or job.made() for job, info in zip(jobs, there, strict=True)]
        if users is not None:
            _say_users(backup_users.restore_users(client, users, seconds), as_json=as_json)
        restored = []
        total = sum(partition.end - partition.log_start for job in jobs for partition in job.entry.partitions)
        with output.progress("Restoring", total, noun="offsets") as advance:
            for job, info in zip(jobs, targets, strict=True):
                rows = job.fill(info, advance)
                groups = [one for one in manifest.groups if one.stream_id == job.entry.stream_id]
                restored.append(job.finish(info, rows, groups, paused=paused or name is not None))
    if restored:
        _say(restored, as_json=as_json)


def _check_only_users(of_streams: dict[str, object]) -> None:
    if given := [flag for flag, value in of_streams.items() if value is not None]:
        raise typer.BadParameter(f"--users-only makes no streams, so {given[0]} has no meaning")


def _users_of(manifest: Manifest, folder: Path) -> list[UserExport]:
    """Return the backup's users. Raise OperationalError if it has none, CorruptionError if their file is corrupt."""
    from penstock.cli.backup import users as backup_users

    if manifest.access is None:
        raise OperationalError(f"{folder} has no users: there were none, or it is of single streams (--stream)")
    return backup_users.read_users(folder, manifest.access)


def _ask(administrators: list[str], folder: Path) -> None:
    """Ask the user to confirm new administrators. Raise OperationalError at the end of stdin."""
    if administrators:
        names = ", ".join(administrators)
        what = "an administrator" if len(administrators) == 1 else "administrators"
        confirm(f"Make {names} of {folder} {what} of this cluster?", "nothing was restored")


def _say_users(done: RestoredUsers, *, as_json: bool) -> None:
    if as_json:
        for name in (*done.made, *done.left):
            known = {"user": name, "made": name in done.made}
            output.print_json({**known, "administrator": True} if name in done.administrators else known)
        return
    made = ", ".join(f"{one} (administrator)" if one in done.administrators else one for one in done.made)
    say_note(f"{output.counted(len(done.made), 'user')} made{made and ': '}{made}")
    for name in done.left:
        say_note(f"note: user {name} exists, and is unchanged")


def _chosen(manifest: Manifest, name: str | None, folder: Path, *, needs_some: bool) -> list[StreamBackup]:
    names = sorted({one.name for one in manifest.streams})
    if needs_some and name is None and not names:
        raise OperationalError(f"{folder} has no streams: --users-only makes the users that it has")
    if name is not None and name not in names:
        raise OperationalError(f"{folder} has no stream {name}; it has {', '.join(names) or 'none at all'}")
    found = [manifest.stream(one) for one in names if name in (None, one)]
    chosen = [one for one in found if one is not None]
    # Encrypted streams first: brokers without keys reject them, and then no other stream was created yet.
    return sorted(chosen, key=lambda one: not one.config.is_encrypted)


def _check_files(jobs: list[_Job], there: list[StreamInfo | None]) -> None:
    """Verify every file that is still needed before anything is created from it. Raise CorruptionError."""
    from penstock.cli.backup import files as backup_files

    files = [one for job, info in zip(jobs, there, strict=True) for one in job.needed(info)]
    with output.progress("Verifying", sum(file.size_bytes for *_, file in files), noun="bytes") as advance:
        done = 0
        for folder, part, file in files:
            backup_files.check_file(folder, part, file)
            done += file.size_bytes
            advance(done)


class _Job(NamedTuple):
    """Restores one stream."""

    client: Client
    folder: Path
    entry: StreamBackup
    name: str
    replicas: int | None
    brokers: int
    timeout_s: float
    unlimited: tuple[str, ...]  # limits of its config that are not restored
    times: placed_rows.RowTimes

    def is_done(self) -> bool:
        """True if an earlier run has completed it, so that this one does not change it; prints a note."""
        from penstock.cli.backup.restored_already import RestoredState, held_of
        from penstock.client.errors import StreamNotFound

        with suppress(StreamNotFound):
            there = self.client.stream(self.name, timeout=self.timeout_s)
            timeout_s = max(self.timeout_s, placed_rows.PUT_TIMEOUT_S)
            if there.intake == Intake.PAUSED:
                return False
            held = held_of(self.client, self.folder, self.entry, there, self.times, timeout_s)
            if held is RestoredState.ALL:
                text = f"note: stream {there.name} is {there.intake}, and already has all rows of the backup"
                say_note(f"{text}: it is left as it is")
            elif held is RestoredState.REST:
                text = f"note: stream {there.name} is {there.intake}, and has only the last rows of the backup"
                text = f"{text}: the earlier ones were deleted, but not by its current limits. It is left as it is"
                say_note(f"{text}. To have all of it, restore under another name (--stream, --as)")
            elif held is RestoredState.EXPIRED:
                text = f"note: stream {there.name} is {there.intake}, and goes as far as the backup"
                text = f"{text}, but its limits have deleted the backup's rows: it is left as it is"
                hint = "restore under another name (--stream, --as) with --without-max-age"
                say_note(f"{text}. To have them, {hint}")
            return held is not RestoredState.NOTHING
        return False

    def there(self) -> StreamInfo | None:
        """Return the existing stream, or None. Raise OperationalError if it cannot be the one to restore."""
        from penstock.client.errors import StreamNotFound

        with suppress(StreamNotFound):
            there = self.client.stream(self.name, timeout=self.timeout_s)
            self._check(there)
            return there
        return None

    def needed(self, there: StreamInfo | None) -> list[tuple[Path, PartitionBackup, BackupFile]]:
        """Return the files with missing rows. Raise OperationalError if existing rows differ from the backup's."""
        found: list[tuple[Path, PartitionBackup, BackupFile]] = []
        for partition in self.entry.partitions:
            end = 0
            if there is not None:
                placer = self._placer(there, partition)
                self._check_beginning(there, partition, placer)
                end = placer.end
            found += [(self.folder, partition, file) for file in partition.files if file.end_offset > end]
        return found

    def _placer(self, info: StreamInfo, partition: PartitionBackup) -> Placer:
        from penstock.client.bulk.placing import Placer

        timeout_s = max(self.timeout_s, placed_rows.PUT_TIMEOUT_S)
        return Placer(self.client, info, partition.partition, timeout=timeout_s)

    def made(self) -> StreamInfo:
        """Create the stream, paused."""
        from penstock.client.bulk.placing import create_paused

        return create_paused(self.client, self._config(placed_rows.LATER), timeout=self.timeout_s)

    def _config(self, changes: dict[str, Any]) -> Any:
        config = self.entry.config
        wanted = config.replicas or 1 if self.replicas is None else self.replicas
        count = wanted if self.replicas is not None else min(wanted, self.brokers)
        if count < wanted:
            say_note(
                f"note: {self.entry.name} had {wanted} replicas; there are {self.brokers} brokers: it gets {count}"
            )
        observers = min(config.observers, max(0, self.brokers - count))
        min_isr = None if config.min_isr is None or config.min_isr > count else config.min_isr
        fields = {"name": self.name, "replicas": count, "min_isr": min_isr, "observers": observers, **changes}
        return msgspec.structs.replace(config, **fields)

    def _check(self, there: StreamInfo) -> None:
        text = f"stream {there.name} exists"
        if there.intake != Intake.PAUSED:
            text = f"{text}, is {there.intake}, and does not hold this backup; it was not changed"
            raise OperationalError(f"{text}; restore under another name (--stream, --as), or delete it")
        if there.subject != self.entry.config.subject or len(there.partitions) != len(self.entry.partitions):
            raise OperationalError(f"{text} with another subject, or other partitions; restore under another name")

    def fill(self, info: StreamInfo, advance: Callable[[int], None]) -> int:
        """Put the missing rows and compare all; return the count of rows in the backup."""
        done = rows = 0
        for partition in self.entry.partitions:
            placer = self._placer(info, partition)
            latest_us = self._check_beginning(info, partition, placer)
            begin = self._kept_from(info, partition, placer)
            self._fill(placer, partition, latest_us, partial(_tell, advance, done - partition.log_start))
            done += partition.end - partition.log_start
            rows += self._compare(info, partition, begin, latest_us)
        return rows

    def _kept_from(self, info: StreamInfo, partition: PartitionBackup, placer: Placer) -> int:
        """Return the first offset to compare. Raise OperationalError if rows are missing that no limit deleted."""
        from penstock.cli.backup.restored_already import explains

        if placer.start <= partition.log_start or not _has_limits(info):
            return partition.log_start
        if not explains(info, self.folder, partition, placer.start, placer.end, self.times):
            text = f"stream {info.name} begins at offset {placer.start}, and the backup at {partition.log_start}"
            raise OperationalError(f"{text}: the earlier rows were purged; restore under another name (--stream, --as)")
        return placer.start

    def _fill(
        self, placer: Placer, partition: PartitionBackup, latest_us: int | None, tell: Callable[[int], None]
    ) -> None:
        from penstock.cli.backup import files as backup_files

        batches = backup_files.batches(self.folder, partition, max(placer.end, partition.log_start))
        placed_rows.put(placer, self.times.limited(self.times.counted(batches), latest_us), tell, self.times)
        if placer.end < partition.end:
            placer.begin_at(partition.end)  # the backup has no rows up to its end
        placer.give_up_before(min(partition.log_start, placer.end))

    def _check_beginning(self, info: StreamInfo, partition: PartitionBackup, placer: Placer) -> int | None:
        """Raise OperationalError unless existing rows are the backup's first; return the time limit of further rows."""
        from penstock.cli.backup import files as backup_files
        from penstock.client.read.batches import messages_of

        text = f"stream {info.name} has other rows than {self.folder}; it was not changed"
        if placer.end > partition.end:
            raise OperationalError(f"{text}; restore under another name (--stream, --as), or delete it")
        last = placed_rows.last_row(self.client, info, partition.partition, placer, self.timeout_s)
        if last is None:
            return self.times.latest_us()
        for rows, _ in backup_files.batches(self.folder, partition, last.offset):
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

    def _compare(self, info: StreamInfo, partition: PartitionBackup, begin: int, latest_us: int | None) -> int:
        """Compare rows from `begin` on with the backup; return their count. Raise OperationalError if they differ."""
        from penstock.cli.backup import files as backup_files
        from penstock.commitlog.verify.checksums import RangeSums

        places = (min(begin, partition.end), partition.end)
        sums = RangeSums(*places)
        batches = backup_files.batches(self.folder, partition, begin)
        for _ in placed_rows.summed(self.times.limited(batches, latest_us), sums):
            pass
        return placed_rows.compare(self.client, info, partition.partition, sums, *places, what="the backup")

    def finish(self, info: StreamInfo, rows: int, groups: list[GroupBackup], *, paused: bool) -> Restored:
        """Restore the remaining config, the groups' offsets, and the intake."""
        later = placed_rows.later(self.entry.config, is_sealed=self.entry.intake is Intake.SEALED)
        later = {field: value for field, value in later.items() if field not in self.unlimited}
        self._say_age(info, is_limited="max_age_ms" in later)
        if later:
            self.client.alter_stream(info, timeout=self.timeout_s, **later)
        for group in groups:
            offsets = {int(partition): offset for partition, offset in group.offsets.items()}
            if offsets:
                self.client.groups.commit(group.group, info, offsets, timeout=self.timeout_s)
        self.times.say(info.name)
        intake = Intake.PAUSED if paused else self.entry.intake
        if intake is Intake.OPEN:
            self.client.resume_stream(info, timeout=self.timeout_s)
        elif intake is Intake.READ_ONLY:
            self.client.make_read_only(info, timeout=self.timeout_s)
        elif intake is Intake.SEALED:
            self.client.seal_stream(info, timeout=self.timeout_s)
        return Restored(info.name, rows, len(self.entry.partitions), len(groups), str(intake))

    def _say_age(self, info: StreamInfo, *, is_limited: bool) -> None:
        """Warn how much of an old backup max_age deletes at once, or say that the restored stream has no max_age."""
        max_age_ms = self.entry.config.max_age_ms
        if max_age_ms is None:
            return
        age = format_duration_ms(max_age_ms)
        if self.entry.intake is Intake.SEALED:
            say_note(placed_rows.SEALED_NOTE.format(info.name))
            return
        if not is_limited:
            text = f"note: stream {info.name} now has no max_age, so it keeps all messages; it was {age}"
            say_note(f"{text}: `penstock stream alter {info.name} --max-age {age}`")
            return
        old = 0
        for partition in self.entry.partitions:
            place = timedelta(milliseconds=max_age_ms)
            found = self.client.offsets(info, place, partition=partition.partition, timeout=self.timeout_s)
            old += max(0, min(found.offset, partition.end) - partition.log_start)
        if old:
            text = f"note: stream {info.name} keeps messages for {age}"
            text = f"{text}, and {output.counted(old, 'offset')} of the backup are older: they are deleted now"
            say_note(f"{text}. Restore with --without-max-age to have them")


def _has_limits(info: StreamInfo) -> bool:
    """True if an earlier run has restored the limits, which it does at its end."""
    return any(getattr(info.config, field) != value for field, value in placed_rows.LATER.items())


def _tell(advance: Callable[[int], None], before: int, end: int) -> None:
    advance(before + end)


def _say(restored: list[Restored], *, as_json: bool) -> None:
    if as_json:
        for one in restored:
            output.print_json(one._asdict())
        return
    table = output.table("stream", "rows", "groups", "intake", right=("rows", "groups"))
    for one in restored:
        table.add_row(*map(output.cell, (one.stream, output.count_text(one.rows), one.groups, one.intake)))
    output.console().print(table)
    for one in restored:
        if one.intake == Intake.PAUSED:
            say_note(f"stream {one.stream} is paused; `penstock stream resume {one.stream}` lets it accept messages")
