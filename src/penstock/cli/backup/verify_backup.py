"""`penstock verify` of a backup: checks every file against the manifest, and every batch against its checksum."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import typer

from penstock.base.errors import CorruptionError
from penstock.base.units import format_bytes
from penstock.cli.backup import files as backup_files
from penstock.cli.backup import users as backup_users
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, say_error


class Verdict(NamedTuple):
    """Result for one partition."""

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


class BackupUsers(NamedTuple):
    """Result for the users' file."""

    users: int
    verdict: str
    file: str = ""
    expected: str = ""
    found: str = ""
    position: int = 0


def is_backup(path: Path) -> bool:
    """True if the folder is a backup."""
    return (path / backup_files.MANIFEST).exists()


def verify_backup(folder: Path, stream: str | None, *, as_json: bool) -> None:
    """Verify and print the backup; exit with 1 if any file is corrupt."""
    manifest = backup_files.read_manifest(folder)
    wanted = [entry for entry in manifest.streams if stream in (None, entry.name)]
    parts = [(entry, partition) for entry in wanted for partition in entry.partitions]
    total = sum(file.size_bytes for _, partition in parts for file in partition.files)
    found, done = [], 0
    with output.progress("Verifying", total) as advance:
        for entry, partition in parts:
            mistake: CorruptionError | None = None
            for file in partition.files:
                try:
                    backup_files.check_file(folder, partition, file)
                except CorruptionError as error:
                    mistake = mistake or error
                done += file.size_bytes
                advance(done)
            found.append(_verdict(entry, partition, mistake))
    _show(folder, found, _users(folder, manifest, stream), as_json=as_json)


def _verdict(
    entry: backup_files.StreamBackup, partition: backup_files.PartitionBackup, mistake: CorruptionError | None
) -> Verdict:
    rows, size = sum(one.rows for one in partition.files), sum(one.size_bytes for one in partition.files)
    counts = (entry.name, partition.partition, len(partition.files), partition.log_start, partition.end, rows, size)
    if mistake is None:
        return Verdict(*counts, "sound")
    return Verdict(*counts, "damaged", mistake.file, mistake.position, str(mistake.expected), str(mistake.found))


def _users(folder: Path, manifest: backup_files.Manifest, stream: str | None) -> BackupUsers | None:
    """Verify the users' file; None if there is none, or if only one stream is verified."""
    if manifest.access is None or stream is not None:
        return None
    file = folder / manifest.access.path
    try:
        backup_users.read_users(folder, manifest.access)
    except CorruptionError as error:
        return BackupUsers(manifest.access.users, "damaged", str(file), str(error.expected), str(error.found))
    return BackupUsers(manifest.access.users, "sound")


def _show(folder: Path, found: list[Verdict], users: BackupUsers | None, *, as_json: bool) -> None:
    damaged: list[Verdict | BackupUsers] = [one for one in found if one.verdict != "sound"]
    if users is not None and users.verdict != "sound":
        damaged.append(users)
    if as_json:
        for one in found:
            output.print_json(one._asdict())
        if users is not None:
            output.print_json(users._asdict())
    else:
        table = output.table("stream", "files", "offsets", "rows", "bytes", "verdict", right=("files", "rows", "bytes"))
        for one in found:
            offsets = f"{one.log_start} to {one.end - 1}" if one.end > one.log_start else "-"
            size = format_bytes(one.size_bytes)
            name = f"{one.stream}/{one.partition}"
            table.add_row(*map(output.cell, (name, one.files, offsets, output.count_text(one.rows), size, one.verdict)))
        output.console().print(table)
        for bad in damaged:
            say_error(f"{bad.file}: at byte {bad.position}: expected {bad.expected}, found {bad.found}")
        if not damaged:
            rows = output.counted(sum(one.rows for one in found), "row")
            more = "" if users is None else f", and of {output.counted(users.users, 'user')}"
            output.console().print(output.cell(f"Sound: a backup of {rows}{more}.", "green"))
    if damaged:
        raise typer.Exit(FAILED)
