"""`penstock dump`: prints the files of a data directory, without a broker.

Rules: it writes nothing. Corruption is shown at its position and does not stop the dump. Files that are not Penstock's
are listed. Rows are printed in pieces, so that memory stays bounded for a file of any size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.access.keys import KeysFile, keys_of
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import FAILED, clearly, say_error, say_note
from penstock.cli.terminal.options import Debug, Json, examples
from penstock.cli.terminal.standard_streams import need_stdout
from penstock.ops.verify.log_folders import LogFolders

if TYPE_CHECKING:
    from rich.console import Console

    from penstock.vfs import Vfs

EXAMPLES = examples(
    "# every file, the first rows of each",
    "penstock dump penstock-data",
    "# all of one file",
    "penstock dump penstock-data/raft/log",
    "penstock dump 'penstock-data/streams/00000004-orders/0/00000000000000000000.arrows' --json",
    "# its messages",
    "penstock dump 'penstock-data/streams/00000004-orders/0/00000000000000000000.arrows' --messages --limit 10",
    "# check only: exit code 1 if a file is corrupt",
    "penstock dump penstock-data --limit 0",
)

Row = dict[str, Any]

_FOLDER_LIMIT = 5
_PIECE_ROWS = 500
_PLACES_SHOWN_MAX = 20
_CELL_CHARS_MAX = 60
_BATCH_FIELD = "crc"  # a field that only rows of batches have
_JOURNAL = "metadata.journal"
_RAFT_FOLDER = "raft"
_JSON_LINES = ".jsonl"
_JSON = "penstock.json"
_ALWAYS_SHOWN = frozenset({"position", "base_offset", "end_offset", "count", "index", "number", "slot", "offset"})
_NOTHING_TO_SHOW = (
    "LOCK",
    "clean-stop",
    "listened",
    "runs",
    "guarded",
    "proving",
    "nats-server.conf",
    "admin.credentials",
    "cluster.secret",
    "nats.credentials",
    "raft/reserve",
    "raft/synced",
    "metadata.reserve",
    "metadata.synced",
)
_MARKS_FOLDER = "made"  # holds only empty files


@clearly
def dump(
    paths: Annotated[
        list[Path], typer.Argument(metavar="PATH...", help="Files, or directories with all files below them.")
    ],
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            min=0,
            help=f"Rows of each file.  Default: all of a file, {_FOLDER_LIMIT} of each in a directory.",
        ),
    ] = None,
    messages: Annotated[
        bool, typer.Option("--messages", "-m", help="Show the messages in segments, not the batches.")
    ] = False,
    keys_file: KeysFile = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print the contents of files, also while a broker uses them: segments, indexes, checkpoints, lineage, Raft's log.

    Every row is checked, whatever the limit. The last line says whether all files are sound, or lists the corruption;
    then the exit code is 1.
    """
    need_stdout()
    console = output.console()
    verdict = _Verdict()
    folders = LogFolders(keys_of(keys_file))
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        rows_max = limit if limit is not None else (_FOLDER_LIMIT if path.is_dir() else None)
        for file in _files(path):
            _dump_file(console, _Tally(file, rows_max, folders, messages=messages), verdict, as_json=as_json)
    if verdict.damage:
        say_error(verdict.text())
        raise typer.Exit(FAILED)
    if not as_json:
        console.print(output.cell(verdict.text(), "green"))


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    yield from sorted(file for file in path.rglob("*") if file.is_file() and _has_something_to_show(file))


def _has_something_to_show(file: Path) -> bool:
    return file.parent.name != _MARKS_FOLDER and not file.as_posix().endswith(_NOTHING_TO_SHOW)


class _Verdict:
    """Sums over all files."""

    def __init__(self) -> None:
        self.files = 0
        self.rows = 0
        self.damage: list[str] = []

    def text(self) -> str:
        """Return one line, and one more for each corrupt place."""
        checked = f"{output.counted(self.files, 'file')}, {output.counted(self.rows, 'row')}"
        if not self.damage:
            return f"Sound: {checked}."
        places = [*self.damage[:_PLACES_SHOWN_MAX]]
        if len(self.damage) > _PLACES_SHOWN_MAX:
            places.append(f"and {len(self.damage) - _PLACES_SHOWN_MAX} more")
        found = output.counted(len(self.damage), "damaged place")
        return "\n".join((f"{found} in {checked}; nothing was changed", *places))


def _dump_file(console: Console, tally: _Tally, verdict: _Verdict, *, as_json: bool) -> None:
    file = tally.file
    try:
        rows = tally.counted(_rows(file, tally.folders))
        if as_json:
            for row in rows:
                output.print_json({"file": str(file), **row})
        else:
            console.print(output.cell(f"{file} ({output.counted(file.stat().st_size, 'byte')})", "bold cyan"))
            while piece := list(itertools.islice(rows, _PIECE_ROWS)):
                _print_piece(console, piece)
    except ValueError:
        say_note(f"{file}: not a file of Penstock's")
        return
    verdict.files += 1
    verdict.rows += tally.rows
    verdict.damage += tally.damage
    if not as_json:
        if tally.hidden:
            console.print(output.cell(f"  and {output.counted(tally.hidden, 'more row')}", "dim"))
        console.print()


class _Tally:
    """Limits the printed rows of one file and counts them; rows that report corruption always pass.

    With `messages` it replaces each batch by its messages.
    """

    def __init__(self, file: Path, rows_max: int | None, folders: LogFolders, *, messages: bool) -> None:
        self.file = file
        self.folders = folders
        self._rows_max = rows_max
        self._messages = messages
        self._shown = 0
        self.rows = 0
        self.hidden = 0
        self.damage: list[str] = []

    def counted(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows to print; the counts are complete at the end."""
        for row in rows:
            if "damage" in row:
                self.damage.append(f"{self.file} at byte {row.get('position')}")
                yield row
                continue
            is_opened = self._messages and _BATCH_FIELD in row
            count = row["count"] if is_opened else 1
            self.rows += count
            room = count if self._rows_max is None else max(0, self._rows_max - self._shown)
            self._shown += min(count, room)
            self.hidden += count - min(count, room)
            if room:
                yield from itertools.islice(_message_rows(self.file, row, self.folders), room) if is_opened else (row,)


def _message_rows(file: Path, batch: Row, folders: LogFolders) -> Iterator[Row]:
    """Yield the messages of a batch that passed its check."""
    from penstock.batch.codec import check_rows
    from penstock.cli.messages.rows import json_row
    from penstock.client.read.batches import messages_of

    with closing(_vfs(folders, file).open(file.name, read_only=True)) as source:
        data = source.read_at(batch["position"], batch["size_bytes"])
    for message in messages_of(check_rows(data, file=str(file), position=batch["position"])):
        yield json_row(message)


def _vfs(folders: LogFolders, file: Path) -> Vfs:
    folder = file.resolve().parent
    return folders.open(folder, folder)


def _rows(file: Path, folders: LogFolders) -> Iterator[Row]:
    """Return the rows of a file, by its name. Raise ValueError if the name is not Penstock's."""
    if file.name.startswith(_JOURNAL):
        return _journal_rows(file)
    if file.parent.name == _RAFT_FOLDER:
        return _raft_rows(file)
    if file.name.endswith(_JSON_LINES) or file.name == _JSON:
        return _json_rows(file)
    return _log_rows(file, folders)


def _log_rows(file: Path, folders: LogFolders) -> Iterator[Row]:
    from penstock.commitlog.verify.dump import file_rows
    from penstock.vfs.keys import NoHeaderError

    try:
        yield from file_rows(_vfs(folders, file), file.name)
    except NoHeaderError as error:
        yield {"position": 0, "damage": error.strerror}


def _json_rows(file: Path) -> Iterator[Row]:
    import msgspec

    position = 0
    for line in file.read_bytes().splitlines(keepends=True):
        try:
            content = msgspec.json.decode(line)
            yield content if isinstance(content, dict) else {"content": content}
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            yield {"position": position, "damage": str(error)}
        position += len(line)


def _journal_rows(file: Path) -> Iterator[Row]:
    import msgspec

    from penstock.base.errors import CorruptionError, RemoteError
    from penstock.metadata.persistence.journal import read_entries

    data = file.read_bytes()
    end_position = 0
    try:
        for entry in read_entries(data, str(file)):
            end_position = entry.end_position
            command = msgspec.to_builtins(entry.command)
            kind = command.pop("type")
            yield {"position": entry.position, "index": entry.index, "command": kind, "content": command}
    except (CorruptionError, RemoteError) as error:
        yield {"position": end_position, "damage": str(error)}
        return
    if 0 < end_position < len(data):
        # A torn tail, unless a broker is writing it right now; a broker that starts cuts it, and keeps the bytes.
        yield {"position": end_position, "damage": f"{len(data) - end_position} bytes of an incomplete entry"}


def _raft_rows(file: Path) -> Iterator[Row]:
    import msgspec

    from penstock.metadata.commands import decode_command
    from penstock.raft.dump import file_rows

    for row in file_rows(file.read_bytes(), file.name):
        data = row.pop("data", None)
        if isinstance(data, bytes):
            row["content"] = {}
            if data:
                try:
                    row["content"] = msgspec.to_builtins(decode_command(data))
                except msgspec.DecodeError:
                    row["content"] = {"bytes": data.hex()}
        yield row


def _print_piece(console: Console, rows: list[Row]) -> None:
    """Print consecutive rows with the same columns as a table, and corruption between the tables."""
    for columns, group in itertools.groupby(rows, key=tuple):
        same = list(group)
        if "damage" in columns:
            for row in same:
                console.print(output.cell(f"  DAMAGE at byte {row.get('position')}: {row['damage']}", "bold red"))
            continue
        # Omit columns that are empty in all rows, and headers because they are long; --json has them.
        shown = [name for name in columns if name in _ALWAYS_SHOWN or any(_says_something(row[name]) for row in same)]
        shown = [name for name in shown if not name.startswith("headers")]
        table = output.table(*shown, right=tuple(name for name in shown if isinstance(same[0][name], int)))
        for row in same:
            table.add_row(*(output.cell(_text(name, row[name])) for name in shown))
        console.print(table)


def _says_something(value: object) -> bool:
    return bool(value.strip("0")) if isinstance(value, str) else bool(value)


def _text(name: str, value: object) -> str:
    if name.endswith("_us") and isinstance(value, int):
        return output.time_text(value)
    if isinstance(value, dict | list):
        import msgspec

        value = msgspec.json.encode(value).decode()
        return value if name == "content" else output.cut(value, _CELL_CHARS_MAX)
    text = "" if value is None else str(value)
    return output.cut(text, _CELL_CHARS_MAX) if name.startswith("value") else text
