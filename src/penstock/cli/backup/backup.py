"""`penstock backup`: copies streams and committed offsets into a folder; the next run adds new messages."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penstock import __version__
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.units import format_bytes
from penstock.cli.terminal import output
from penstock.cli.terminal.completing import complete_stream
from penstock.cli.terminal.failure import clearly, say, say_note
from penstock.cli.terminal.options import DEFAULT_TIMEOUT, Debug, Json, Server, Timeout, connected, examples

if TYPE_CHECKING:
    from penstock.cli.backup.files import Manifest, PartitionBackup, StreamBackup
    from penstock.client.blocking.client import Client
    from penstock.messages import StreamInfo, UserExport

EXAMPLES = examples(
    "# all streams and the offsets of groups; the next run adds only new messages",
    "penstock backup /backups/penstock",
    "penstock backup /backups/orders --stream orders",
    "# verify it without a broker",
    "penstock verify /backups/penstock",
    "# what is in it, with any reader of Arrow",
    "penstock dump /backups/penstock/streams/7-orders/0/00000000000000000000.arrows",
)


class Copied(NamedTuple):
    """Counts of what one run added for a stream."""

    stream: str
    rows: int
    size_bytes: int
    offsets: int


@clearly
def backup(
    ctx: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of the backup: a new one, or that of an earlier backup.")
    ],
    streams: Annotated[
        list[str] | None,
        typer.Option(
            "--stream",
            metavar="NAME",
            help="Back up only this stream.  May be repeated.  Default: all.",
            autocompletion=complete_stream,
        ),
    ] = None,
    as_json: Json = False,
    server: Server = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    debug: Debug = False,
) -> None:
    """Copy the committed messages of streams into a folder, with the streams' configs and the offsets of groups.

    Run it again with the same folder to add the messages that came since. You can interrupt it: complete files are
    kept, and the next run continues. Streams stay in use meanwhile.

    Files are Arrow streams of the log's own batches, each with its checksum; a manifest has the SHA-256 of each file.
    `penstock verify DIR` verifies a backup without a broker. `penstock restore DIR` makes streams from it.

    Without --stream the backup includes users: their rules, and the hashes that check their passwords and tokens. Only
    you can read the folder (mode 0700). Keep it secret: messages of encrypted streams are not encrypted there.

    Messages that a stream has since compacted, expired or purged stay in the backup.
    """
    from penstock.cli.backup import files as backup_files

    if (folder / "penstock.json").exists():
        text = f"{folder} is the data directory of a broker: give another folder for the backup"
        raise ValueError(f"{text}; streams come from the broker itself (--server)")
    backup_files.private_folder(folder)
    with backup_files.alone(folder):
        manifest = _manifest(folder)
        with connected(ctx, server, timeout) as (client, seconds):
            copied, users = _back_up(client, folder, manifest, streams, seconds)
    _say(folder, copied, users, as_json=as_json)


def _manifest(folder: Path) -> Manifest:
    """Return the folder's manifest, or a new one. Raise OperationalError if the folder holds other files."""
    from penstock.cli.backup import files as backup_files

    is_new = not (folder / backup_files.MANIFEST).exists()
    if is_new and any(folder.iterdir()):
        raise OperationalError(f"{folder} is not empty, and no backup: give a new folder, or that of a backup")
    return backup_files.Manifest() if is_new else backup_files.read_manifest(folder)


def _back_up(
    client: Client, folder: Path, manifest: Manifest, streams: list[str] | None, seconds: float
) -> tuple[list[Copied], list[UserExport] | None]:
    from penstock.cli.backup import files as backup_files
    from penstock.cli.backup import users as backup_users

    infos = _chosen(client, streams, seconds)
    if not (infos or _users(client, seconds)):
        raise OperationalError("there are neither streams nor users yet: nothing is to be backed up")
    _check_cluster(manifest, client.cluster_id(timeout=seconds), folder)
    _warn(folder, infos)
    manifest.penstock = __version__
    _note_groups(client, manifest, infos, seconds)  # before the rows, so that no offset is beyond the copied rows
    entries = [(_entry(manifest, info), info) for info in infos]
    backup_files.write_manifest(folder, manifest)
    job = _Job(client, folder, manifest, seconds)
    total = sum(max(0, place.left) for entry, info in entries for place in job.places(entry, info))
    copied = []
    with output.progress("Backing up", total, noun="offsets") as advance:
        for entry, info in entries:
            copied.append(job.copy(entry, info, advance))
            entry.backed_up = _now()
            backup_files.write_manifest(folder, manifest)
    users = None if streams else _users(client, seconds)
    if users is not None:
        backup_users.write_users(folder, manifest, users, _now())
    return copied, users


def _now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _warn(folder: Path, infos: list[StreamInfo]) -> None:
    """Warn if the backup is less protected than the original: decrypted streams, a folder that others can read."""
    from penstock.cli.backup import files as backup_files

    for info in infos:
        if info.config.is_encrypted:
            say_note(f"warning: stream {info.name} is encrypted on the disks of brokers; in a backup it is plain")
    if backup_files.is_open_to_others(folder):
        say_note(f"warning: {folder} can be read by others: keep it where they cannot")


def _users(client: Client, timeout: float) -> list[UserExport] | None:
    """Return all users with their password and token verifiers; None if the broker is too old to export them."""
    try:
        return client.users.export(timeout=timeout)
    except RemoteError as error:
        if error.code != ErrorCode.UNSUPPORTED_VERSION:
            raise
        say_note("note: users are not backed up: the broker is older than this Penstock")
        return None


def _chosen(client: Client, names: list[str] | None, timeout: float) -> list[StreamInfo]:
    if names:
        return [client.stream(name, timeout=timeout) for name in dict.fromkeys(names)]
    return [info for info in client.streams(timeout=timeout) if not info.config.is_internal]


def _check_cluster(manifest: Manifest, cluster_id: str, folder: Path) -> None:
    from penstock.base.ids import are_different_clusters

    if are_different_clusters(manifest.cluster_id, cluster_id):
        text = f"{folder} is a backup of cluster {manifest.cluster_id}, but this is cluster {cluster_id}"
        raise OperationalError(f"{text}: give another folder")
    manifest.cluster_id = cluster_id


def _entry(manifest: Manifest, info: StreamInfo) -> StreamBackup:
    """Return the stream's manifest entry, updated with its current config; a new entry if there is none."""
    from penstock.base.config import Intake, StreamConfig
    from penstock.cli.backup.files import PartitionBackup, StreamBackup

    fields = {name: getattr(info.config, name) for name in StreamConfig.__struct_fields__}
    found = next((one for one in manifest.streams if one.stream_id == info.stream_id), None)
    if found is None:
        found = StreamBackup(info.name, int(info.stream_id), StreamConfig(**fields))
        manifest.streams.append(found)
        manifest.streams.sort(key=lambda one: one.stream_id)
    found.config, found.intake = StreamConfig(**fields), Intake(info.intake)
    for number in range(len(found.partitions), max(1, len(info.partitions))):
        found.partitions.append(PartitionBackup(number))
    return found


def _note_groups(client: Client, manifest: Manifest, infos: list[StreamInfo], timeout: float) -> None:
    from penstock.cli.backup.files import GroupBackup

    by_id = {int(info.stream_id): info for info in infos}
    kept = [one for one in manifest.groups if one.stream_id not in by_id]
    for group in client.groups.all(timeout=timeout):
        info = by_id.get(group.stream_id)
        if info is None:
            continue
        places = client.groups.offsets(group.group, info, timeout=timeout)
        offsets = {str(one.partition): one.offset for one in places if one.offset is not None}
        kept.append(GroupBackup(group.group, int(info.stream_id), offsets))
    manifest.groups = sorted(kept, key=lambda one: (one.stream_id, one.group))


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


class _Job(NamedTuple):
    """One run of a backup."""

    client: Client
    folder: Path
    manifest: Manifest
    timeout_s: float

    def places(self, entry: StreamBackup, info: StreamInfo) -> list[_Place]:
        """Return all partitions' offsets, as their leaders report them."""
        from penstock.client.values import LATEST

        found = []
        for partition in entry.partitions:
            at = self.client.offsets(info, LATEST, partition=partition.partition, timeout=self.timeout_s)
            found.append(_Place(partition, at.log_start, at.committed_end))
        return found

    def copy(self, entry: StreamBackup, info: StreamInfo, advance: Callable[[int], None]) -> Copied:
        """Add the stream's new rows to the backup."""
        rows = size_bytes = offsets = 0
        for place in self.places(entry, info):
            known = len(place.partition.files)
            if place.partition.files and place.partition.end < place.log_start:
                gone = f"offsets {place.partition.end} to {place.log_start - 1} were deleted before they were backed up"
                say_note(f"note: {entry.name}/{place.partition.partition}: {gone}")
            if place.left < 0:
                raise OperationalError(_cut(entry, place.committed_end, self.folder))
            offsets += max(0, place.left)
            self._copy(entry, info, place)
            place.partition.log_start = place.log_start
            place.partition.end = max(place.partition.end, place.committed_end)
            added = place.partition.files[known:]
            rows += sum(one.rows for one in added)
            size_bytes += sum(one.size_bytes for one in added)
            advance(offsets)
        return Copied(entry.name, rows, size_bytes, offsets)

    def _copy(self, entry: StreamBackup, info: StreamInfo, place: _Place) -> None:
        from penstock.cli.backup.files import FILE_BYTES, FileWriter, write_manifest
        from penstock.client.bulk.raw_batches import raw_batches
        from penstock.client.errors import LogTruncated

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
            raise OperationalError(_cut(entry, int(error.details["end_offset"]), self.folder)) from None
        finally:
            if writer is not None:
                writer.drop()


def _cut(entry: StreamBackup, end: int, folder: Path) -> str:
    text = f"stream {entry.name} was truncated to offset {end} (by a power loss?): {folder} has rows that it lost"
    return f"{text}; back it up into another folder"


def _say(folder: Path, copied: list[Copied], users: list[UserExport] | None, *, as_json: bool) -> None:
    if as_json:
        for one in copied:
            output.print_json(one._asdict())
        return
    if not copied:
        say(f"{folder}: there are no streams, and {output.counted(len(users or ()), 'user')}")
        return
    table = output.table("stream", "new rows", "bytes", right=("new rows", "bytes"))
    for one in copied:
        table.add_row(output.cell(one.stream), output.cell(output.count_text(one.rows)), format_bytes(one.size_bytes))
    output.console().print(table)
    rows = output.counted(sum(one.rows for one in copied), "row")
    say(f"{folder} has {rows} more, of {output.counted(len(copied), 'stream')}")
