"""`penstock restore`: makes streams of a backup, with their offsets, times and groups."""

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
from penstock.cli import output, placed_rows
from penstock.cli.confirming import confirm
from penstock.cli.failure import clearly, say_note
from penstock.cli.options import DEFAULT_TIMEOUT, Debug, Json, Server, Timeout, Yes, connected, examples

if TYPE_CHECKING:
    from penstock.cli.backup_files import File, GroupBackup, Manifest, PartitionBackup, StreamBackup
    from penstock.cli.backup_users import RestoredUsers
    from penstock.client.blocking import Client
    from penstock.client.placing import Placer
    from penstock.messages import StreamInfo, UserExport

EXAMPLES = examples(
    "# all streams, into another cluster",
    "penstock restore /backups/penstock --server other:7422",
    "# with those who may log in; an administrator is there already",
    "penstock --credentials admin.credentials restore /backups/penstock --users --server other:7422",
    "penstock --credentials admin.credentials restore /backups/penstock --users-only --server other:7422",
    "# one, to look at, beside the one that is there; it stays paused",
    "penstock restore /backups/penstock --stream orders --as orders-of-monday",
    "# from so long ago that its max_age would delete all of it at once",
    "penstock restore /backups/penstock --stream orders --as orders-of-march --without-max-age",
    "# rows that a clock which was ahead has dated in the future get the time of now",
    "penstock restore /backups/penstock --stream orders --future-times now",
)


class Restored(NamedTuple):
    """What became of one stream."""

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
        typer.Option("--as", metavar="NAME", help="With --stream: what it is called here. It stays paused then."),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", metavar="N", min=1, help="Default: as it was, but no more than there are brokers."),
    ] = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="Leave the streams paused, so that nobody listens for them yet.")
    ] = False,
    without_max_age: Annotated[
        bool,
        typer.Option(
            "--without-max-age",
            help="Give the streams no max_age, which would delete what is older by now than it allows.",
        ),
    ] = False,
    future_times: placed_rows.FutureTimesOption = placed_rows.FutureTimes.KEEP,
    with_users: Annotated[
        bool, typer.Option("--users", help="Make the users of the backup, too, before any row comes.")
    ] = False,
    only_users: Annotated[
        bool, typer.Option("--users-only", help="Make the users of the backup, and no streams.")
    ] = False,
    yes: Yes = False,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Make streams of a backup: the same rows at the same offsets, with the same times, and groups where they were.

    Every file is verified before its stream is made, and the stream is compared with the backup in the end. It
    can be interrupted, and run again: it goes on where the streams here end, and those that are whole and take messages
    already are left as they are. A stream of that name that holds anything else is left alone, and ends it.

    With --users or --users-only, users of the backup that are not there are made: they log in as they did, with the
    same passwords, tokens and nkeys, and may do the same. It takes an administrator there. A user of that name is left
    as it is. Asks first where some of them are administrators: nothing in a backup proves who has written it.

    A stream is paused until all of it is there; then it takes messages, if it did when it was backed up, and has its
    retention again. Rows keep their times, so a max_age deletes at once what is older by now: see --without-max-age.
    """
    from penstock.cli import backup_files, backup_users

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
        # All that is refused is refused before anything is made, and users are made last.
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
    """OperationalError: it has none. CorruptionError."""
    from penstock.cli import backup_users

    if manifest.access is None:
        raise OperationalError(f"{folder} has no users: there were none, or it is of single streams (--stream)")
    return backup_users.read_users(folder, manifest.access)


def _ask(administrators: list[str], folder: Path) -> None:
    """Whether these may become administrators. OperationalError: nobody answers."""
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
        say_note(f"note: user {name} is there, and is left as it is")


def _chosen(manifest: Manifest, name: str | None, folder: Path, *, needs_some: bool) -> list[StreamBackup]:
    names = sorted({one.name for one in manifest.streams})
    if needs_some and name is None and not names:
        raise OperationalError(f"{folder} has no streams: --users-only makes the users that it has")
    if name is not None and name not in names:
        raise OperationalError(f"{folder} has no stream {name}; it has {', '.join(names) or 'none at all'}")
    found = [manifest.stream(one) for one in names if name in (None, one)]
    chosen = [one for one in found if one is not None]
    # Brokers without keys refuse what is encrypted: before any other stream was made.
    return sorted(chosen, key=lambda one: not one.config.is_encrypted)


def _check_files(jobs: list[_Job], there: list[StreamInfo | None]) -> None:
    """Every file that is still needed: of a damaged backup nothing is left behind."""
    from penstock.cli import backup_files

    files = [one for job, info in zip(jobs, there, strict=True) for one in job.needed(info)]
    with output.progress("Verifying", sum(file.size_bytes for *_, file in files), noun="bytes") as advance:
        done = 0
        for folder, part, file in files:
            backup_files.check_file(folder, part, file)
            done += file.size_bytes
            advance(done)


class _Job(NamedTuple):
    """One stream."""

    client: Client
    folder: Path
    entry: StreamBackup
    name: str
    replicas: int | None
    brokers: int
    timeout_s: float
    unlimited: tuple[str, ...]  # limits of its config that it is not to get
    times: placed_rows.RowTimes

    def is_done(self) -> bool:
        """Whether an earlier run has restored it to its end: it takes messages then, and is left as it is."""
        from penstock.cli.restored_already import Held, held_of
        from penstock.client.errors import StreamNotFound

        with suppress(StreamNotFound):
            there = self.client.stream(self.name, timeout=self.timeout_s)
            timeout_s = max(self.timeout_s, placed_rows.PUT_TIMEOUT_S)
            if there.intake == Intake.PAUSED:
                return False
            held = held_of(self.client, self.folder, self.entry, there, self.times, timeout_s)
            if held is Held.ALL:
                text = f"note: stream {there.name} is there with all that the backup has, and is {there.intake}"
                say_note(f"{text}: it is left as it is")
            elif held is Held.REST:
                text = f"note: stream {there.name} is there, is {there.intake}, and has the end of what the backup has"
                text = f"{text}: what came before is gone, and not by its limits of now. It is left as it is"
                say_note(f"{text}. To have all of it, restore under another name (--stream, --as)")
            elif held is Held.EXPIRED:
                text = f"note: stream {there.name} is there, is {there.intake}, and goes as far as the backup"
                text = f"{text}, whose rows its limits have deleted: it is left as it is"
                hint = "restore under another name (--stream, --as) with --without-max-age"
                say_note(f"{text}. To have them, {hint}")
            return held is not Held.NOTHING
        return False

    def there(self) -> StreamInfo | None:
        """The stream here, if there is one. OperationalError: it is another one."""
        from penstock.client.errors import StreamNotFound

        with suppress(StreamNotFound):
            there = self.client.stream(self.name, timeout=self.timeout_s)
            self._check(there)
            return there
        return None

    def needed(self, there: StreamInfo | None) -> list[tuple[Path, PartitionBackup, File]]:
        """The files of what is not here yet. OperationalError: what is here is not the beginning of this backup."""
        found: list[tuple[Path, PartitionBackup, File]] = []
        for partition in self.entry.partitions:
            end = 0
            if there is not None:
                placer = self._placer(there, partition)
                self._check_beginning(there, partition, placer)
                end = placer.end
            found += [(self.folder, partition, file) for file in partition.files if file.end_offset > end]
        return found

    def _placer(self, info: StreamInfo, partition: PartitionBackup) -> Placer:
        from penstock.client.placing import Placer

        timeout_s = max(self.timeout_s, placed_rows.PUT_TIMEOUT_S)
        return Placer(self.client, info, partition.partition, timeout=timeout_s)

    def made(self) -> StreamInfo:
        """The stream, made here."""
        from penstock.client.placing import create_paused

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
        text = f"stream {there.name} is there"
        if there.intake != Intake.PAUSED:
            text = f"{text}, and is {there.intake}: nothing is mixed with what it holds, which is not this backup"
            raise OperationalError(f"{text}; restore that one under another name (--stream, --as), or delete it")
        if there.subject != self.entry.config.subject or len(there.partitions) != len(self.entry.partitions):
            raise OperationalError(f"{text} with another subject, or other partitions; restore under another name")

    def fill(self, info: StreamInfo, advance: Callable[[int], None]) -> int:
        """Put what is not there yet; how many rows the backup has."""
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
        """Where the rows begin that must be there. OperationalError: more is gone than the limits explain."""
        from penstock.cli.restored_already import explains

        if placer.start <= partition.log_start or not _has_limits(info):
            return partition.log_start
        if not explains(info, self.folder, partition, placer.start, placer.end, self.times):
            text = f"stream {info.name} begins at offset {placer.start}, and the backup at {partition.log_start}"
            raise OperationalError(f"{text}: what it lacks was purged; restore under another name (--stream, --as)")
        return placer.start

    def _fill(
        self, placer: Placer, partition: PartitionBackup, latest_us: int | None, tell: Callable[[int], None]
    ) -> None:
        from penstock.cli import backup_files

        batches = backup_files.batches(self.folder, partition, max(placer.end, partition.log_start))
        placed_rows.put(placer, self.times.limited(self.times.counted(batches), latest_us), tell, self.times)
        if placer.end < partition.end:
            placer.begin_at(partition.end)  # nothing was kept of it
        placer.give_up_before(min(partition.log_start, placer.end))

    def _check_beginning(self, info: StreamInfo, partition: PartitionBackup, placer: Placer) -> int | None:
        """What is there already must be the beginning of this backup; the latest time that its rows get, if any."""
        from penstock.cli import backup_files
        from penstock.client.batches import messages_of

        text = f"stream {info.name} holds something else than {self.folder}: nothing is mixed with it"
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
        """Whether it has the backup's rows from `begin` on; how many. OperationalError: it has others."""
        from penstock.cli import backup_files
        from penstock.commitlog.checksums import RangeSums

        places = (min(begin, partition.end), partition.end)
        sums = RangeSums(*places)
        batches = backup_files.batches(self.folder, partition, begin)
        for _ in placed_rows.summed(self.times.limited(batches, latest_us), sums):
            pass
        return placed_rows.compare(self.client, info, partition.partition, sums, *places, what="the backup")

    def finish(self, info: StreamInfo, rows: int, groups: list[GroupBackup], *, paused: bool) -> Restored:
        """Give it the rest of its config, groups, and its state."""
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
            text = f"note: stream {info.name} has no max_age here, so all of it is kept; it was {age}"
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
    """Whether an earlier run has come to its end, and given the stream back what takes rows from it."""
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
            say_note(f"stream {one.stream} is paused; `penstock stream resume {one.stream}` has it take messages")
