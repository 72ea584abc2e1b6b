"""`penstock keys`: make keys for encrypted streams, list the keys in use, and rotate to another one.

Rules: a key is printed once, when it is made. The keys in use are read from the files of a data directory, with or
without a running broker; `rewrap` changes only the headers of files, also while the broker runs.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.base.text_files import text_of
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, clearly, say, say_error, say_note
from penstock.cli.terminal.help import Command, Group
from penstock.cli.terminal.open_secrets import warn_if_open
from penstock.cli.terminal.options import Debug, Json, examples
from penstock.cli.terminal.standard_streams import need_stdout

if TYPE_CHECKING:
    from penstock.vfs import Vfs
    from penstock.vfs.keys import EncryptionKeys

_FILE_BYTES_MAX = 64 * 1024
_KEYS_VARIABLE = "PENSTOCK_ENCRYPTION_KEYS"
_FILE_VARIABLE = "PENSTOCK_ENCRYPTION_KEYS_FILE"
_FOLDERS = ("streams", "quarantine")
_NOT_ENCRYPTED = "(not encrypted)"

KeysFile = Annotated[
    Path | None,
    typer.Option(
        "--encryption-keys-file",
        metavar="FILE",
        envvar=_FILE_VARIABLE,
        show_envvar=False,
        help=f"The broker's keys for encrypted streams.  Default: {_FILE_VARIABLE}, or {_KEYS_VARIABLE}.",
    ),
]
DataDirs = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Data directories.")]

app = typer.Typer(
    name="keys",
    cls=Group,
    help="Make keys for encrypted streams, list the keys in use, and rotate to another one.",
    epilog=examples(
        "# the first key: the broker takes it from there, or from PENSTOCK_ENCRYPTION_KEYS",
        "penstock keys new --file penstock.keys",
        "penstock serve --encryption-keys-file penstock.keys",
        "# which files use which key",
        "penstock keys list penstock-data",
    ),
    no_args_is_help=True,
)


def keys_of(file: Path | None) -> EncryptionKeys | None:
    """Return the keys in `file`, else in the environment; None if neither is given. Raise OSError or ValueError."""
    from penstock.vfs.keys import parse_keys
    from penstock.vfs.real import read_whole

    if file is not None:
        warn_if_open(file)
        return parse_keys(text_of(read_whole(file, _FILE_BYTES_MAX)))
    text = os.environ.get(_KEYS_VARIABLE)
    return parse_keys(text) if text else None


@app.command(
    "new",
    cls=Command,
    epilog=examples(
        "# make a key file; run again, it adds a new first key",
        "penstock keys new --file penstock.keys",
        "# for PENSTOCK_ENCRYPTION_KEYS, or a store of secrets",
        "penstock keys new",
    ),
)
@clearly
def new(
    key_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="Its id, which is not secret.  Default: the date and four digits."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            metavar="FILE",
            help="Put it first into this file; a new file gets mode 0600.  Default: print it.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Make a key. If a key file has several, new files use the first.

    Only the broker's user should be able to read the key file. Keep a copy of it away from the data: without the key,
    encrypted data is lost.
    """
    from penstock.vfs.keys import new_key_line

    key_id = key_id or f"{datetime.now(UTC):%Y-%m-%d}-{os.urandom(2).hex()}"
    line = new_key_line(key_id, os.urandom)
    if file is None:
        need_stdout()
        say(line)
        return
    _put_first(file, line)
    say(f"{key_id} is the first key in {file}", err=True)


def _put_first(file: Path, line: str) -> None:
    """Insert the line at the start of a key file; atomic for concurrent readers."""
    from penstock.vfs.keys import parse_keys
    from penstock.vfs.real import read_whole, sync_folder_if_possible

    try:
        before, owner = text_of(read_whole(file, _FILE_BYTES_MAX)), file.stat()
    except FileNotFoundError:
        before, owner = "", None
    content = f"{line}\n{before}"
    parse_keys(content)  # rejects an id that exists
    beside = file.with_name(f"{file.name}.{secrets.token_hex(4)}.new")  # random, so that a leftover does not collide
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as opened_file:
        if owner is not None:
            _give(opened_file.fileno(), owner, file)
        opened_file.write(content)
        opened_file.flush()
        os.fsync(opened_file.fileno())
    beside.replace(file)
    # The broker may encrypt with the key at once, so the rename must survive a power loss.
    sync_folder_if_possible(file.parent)


def _give(number: int, owner: os.stat_result, file: Path) -> None:
    """Give the new file the owner and mode of the old one."""
    made = os.fstat(number)
    if (made.st_uid, made.st_gid) != (owner.st_uid, owner.st_gid):
        try:
            os.fchown(number, owner.st_uid, owner.st_gid)
        except PermissionError:  # keep 0600: the old mode could open it to the wrong group
            say_note(f"warning: {file} now belongs to this user, and not to its former owner: let the broker read it")
            return
    os.fchmod(number, stat.S_IMODE(owner.st_mode))


@app.command("list", cls=Command, epilog=examples("penstock keys list penstock-data"))
@clearly
def list_keys(data_dirs: DataDirs, as_json: Json = False, debug: Debug = False) -> None:
    """Show which keys the files of a data directory use, by stream. This needs no key."""
    from penstock.ops.verify.log_folders import needed
    from penstock.vfs.real import RealVfs

    with needed():
        from penstock.vfs.rewrapping import key_ids
    used: Counter[tuple[str, str]] = Counter()
    size_bytes: Counter[tuple[str, str]] = Counter()
    for data_dir in data_dirs:
        vfs = RealVfs(str(data_dir.resolve()))
        for stream, path in _secret_files(vfs, data_dir):
            try:
                ids = key_ids(vfs, path) or (_NOT_ENCRYPTED,)
                size = (data_dir / path).stat().st_size
            except FileNotFoundError:
                continue  # the broker deleted it meanwhile
            for key_id in ids:
                used[stream, key_id] += 1
                size_bytes[stream, key_id] += size
    if as_json:
        for (stream, key_id), files in sorted(used.items()):
            shown = None if key_id == _NOT_ENCRYPTED else key_id
            output.print_json({"stream": stream, "key_id": shown, "files": files, "bytes": size_bytes[stream, key_id]})
        return
    table = output.table("stream", "key", "files", "bytes", right=("files", "bytes"))
    for (stream, key_id), files in sorted(used.items()):
        table.add_row(*map(output.cell, (stream, key_id, files, size_bytes[stream, key_id])))
    output.console().print(table)


@app.command(
    "rewrap",
    cls=Command,
    epilog=examples(
        "# add a new key before the old one; then let the broker reload",
        "penstock keys new --file penstock.keys",
        "kill -HUP $(cat penstock-data/LOCK)",
        "penstock keys rewrap penstock-data --encryption-keys-file penstock.keys",
    ),
)
@clearly
def rewrap(data_dirs: DataDirs, keys_file: KeysFile = None, debug: Debug = False) -> None:
    """Change every file of a data directory to the first key; then the other keys can be removed.

    The data is not rewritten, only the key in each file's header, which the first key then wraps. A broker may run
    meanwhile, once it has that key (SIGHUP, or a restart). After a crash every file has either the old or the new key.
    """
    from penstock.ops.verify.log_folders import needed
    from penstock.vfs.keys import KeyMissingError
    from penstock.vfs.real import RealVfs

    with needed():
        from penstock.vfs.rewrapping import rewrap as rewrap_file
    keys = keys_of(keys_file)
    if keys is None:
        raise typer.BadParameter(f"no keys are given: --encryption-keys-file, or {_KEYS_VARIABLE}")
    done, missing = 0, []
    for data_dir in data_dirs:
        vfs = RealVfs(str(data_dir.resolve()))
        for _, path in _secret_files(vfs, data_dir):
            try:
                done += rewrap_file(vfs, path, keys, os.urandom)
            except FileNotFoundError:
                continue  # the broker deleted it meanwhile
            except KeyMissingError as error:
                missing.append(f"{data_dir / path}: {error.strerror}")
    say(f"{output.counted(done, 'file')} changed to the key {keys.current_id}", err=True)
    if missing:
        say_error("\n".join((f"{output.counted(len(missing), 'file')} not changed:", *missing)))
        raise typer.Exit(FAILED)


def _secret_files(vfs: Vfs, data_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield (stream's folder, path) of every file that may hold messages.

    Raise ValueError if it is not a data directory with streams.
    """
    from penstock.commitlog.files.files import holds_messages

    if not (data_dir / _FOLDERS[0]).is_dir():
        raise ValueError(f"{data_dir}: not a data directory with streams")
    waiting = [name for name in _FOLDERS if (data_dir / name).is_dir()]
    while waiting:
        folder = waiting.pop(0)
        for name in vfs.list(folder):
            path = f"{folder}/{name}"
            if name.endswith("/"):
                waiting.append(path.rstrip("/"))
            elif holds_messages(path):
                yield path.split("/")[1], path
