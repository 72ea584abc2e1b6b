"""`penstock verify` of a backup: checks every file against the manifest, and every batch against its checksum."""

from __future__ import annotations

from pathlib import Path

import typer

from penstock.base.units import format_bytes
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, say_error


def is_backup(path: Path) -> bool:
    """True if the folder is a backup."""
    from penstock.ops.backup.files import MANIFEST

    return (path / MANIFEST).exists()


def show_backup(folder: Path, stream: str | None, *, as_json: bool) -> None:
    """Verify and print the backup; exit with 1 if any file is corrupt."""
    from penstock.ops.backup.verifying import verify_backup

    found = verify_backup(folder, stream, progress=output.ShownProgress())
    if as_json:
        for one in found.partitions:
            output.print_json(one._asdict())
        for kept in found.schemas:
            output.print_json(kept._asdict())
        for carried in found.consumers:
            output.print_json(carried._asdict())
        if found.users is not None:
            output.print_json(found.users._asdict())
    else:
        table = output.table("stream", "files", "offsets", "rows", "bytes", "verdict", right=("files", "rows", "bytes"))
        for one in found.partitions:
            offsets = f"{one.log_start} to {one.end - 1}" if one.end > one.log_start else "-"
            size = format_bytes(one.size_bytes)
            name = f"{one.stream}/{one.partition}"
            table.add_row(*map(output.cell, (name, one.files, offsets, output.count_text(one.rows), size, one.verdict)))
        output.console().print(table)
        for bad in found.damaged:
            say_error(f"{bad.file}: at byte {bad.position}: expected {bad.expected}, found {bad.found}")
        if not found.damaged:
            rows = output.counted(sum(one.rows for one in found.partitions), "row")
            more = "" if found.users is None else f", and of {output.counted(found.users.users, 'user')}"
            if consumers := sum(one.consumers for one in found.consumers):
                more = f", of {output.counted(consumers, 'consumer')}{more}"
            if versions := sum(one.versions for one in found.schemas):
                more = f", of {output.counted(versions, 'schema')}{more}"
            output.console().print(output.cell(f"Sound: a backup of {rows}{more}.", "green"))
    if found.damaged:
        raise typer.Exit(FAILED)
