"""Prints messages to stdout. Each batch is written and flushed as a whole, so that a reader gets it at once.

| format | what is printed                                                               |
|--------|-------------------------------------------------------------------------------|
| table  | one line per message; on a terminal it is as wide as that, unless `wide`      |
| json   | one object per line; bytes that are not UTF-8 are in `…_base64` instead; on a |
|        | terminal, in colour, and control characters are JSON escapes                  |
| raw    | the value and a line end; a tombstone is an empty line                        |

Parquet, CSV and Arrow are written by `penstock.ops.reading.files`.
"""

from __future__ import annotations

import base64
import os
import shutil
import sys
from collections.abc import Container, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec

from penstock.base.units import counted
from penstock.cli.terminal import output
from penstock.cli.terminal.failure import printable, printable_json, say_note
from penstock.cli.terminal.output import cut, exact_time_text, shown_bytes, time_text, width_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.read.decoding import TypedColumns
    from penstock.client.values import Message

_LOG_COLUMNS: dict[str, tuple[str, int, int | None]] = {
    "partition": ("PART", 0, None),
    "offset": ("OFFSET", 6, None),
    "timestamp": ("TIME", 24, None),
    "subject": ("SUBJECT", 16, 40),
    "key": ("KEY", 8, 24),
    "headers": ("HEADERS", 12, 40),
    "value": ("VALUE", 0, None),
}
"""By column: title, least width on a terminal, and most."""
_OTHER_CELLS_MAX = 40
_CELLS_LEAST, _VALUE_CELLS_LEAST = 8, 16
"""Least width of a column of texts, and of the value, where the room is short."""
_TOMBSTONE = "(tombstone)"
_GAP = "  "
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"

_encode = msgspec.json.Encoder().encode


class Look(NamedTuple):
    """Look of a table: with headers; cells in full; `is_log`: rows of messages, not of a query."""

    headers: bool = False
    wide: bool = False
    is_log: bool = True


class JsonValues:
    """Puts values that are JSON into rows as they are, not as text; counts the others, which stay text."""

    def __init__(self) -> None:
        self.others = 0
        self._raw = msgspec.json.Decoder(msgspec.Raw).decode

    def put(self, row: dict[str, Any]) -> dict[str, Any]:
        """Replace the value of a row of `json_row`."""
        value = row.get("value")
        if value is None and "value_base64" not in row:
            return row
        try:
            row["value"] = self._raw(value or "")
        except (msgspec.DecodeError, RecursionError):
            self.others += 1
        return row


def print_json_lines(
    batches: Iterator[pa.RecordBatch], out: BinaryIO | None = None, values: JsonValues | None = None
) -> None:
    from penstock.client.read.batches import messages_of, partition_of

    is_terminal = out is None and sys.stdout.isatty()
    out = out or sys.stdout.buffer
    for batch in batches:
        partition = partition_of(batch)
        which = {} if partition is None else {"partition": partition}
        found = (which | json_row(message) for message in messages_of(batch))
        lines = b"".join(_encode(row if values is None else values.put(row)) + b"\n" for row in found)
        out.write(_for_terminal(lines) if is_terminal else lines)
        out.flush()


def print_typed_lines(batches: Iterator[pa.RecordBatch], out: BinaryIO | None, typed: TypedColumns) -> None:
    """Print messages with their values as objects; `decode_error` where one does not decode, and its value as it is."""
    from penstock.client.read.batches import messages_of, partition_of
    from penstock.ops.reading.files import values_of

    is_terminal = out is None and sys.stdout.isatty()
    out = out or sys.stdout.buffer
    encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
    *names, error_name = typed.added.names
    for batch in batches:
        partition = partition_of(batch)
        which = {} if partition is None else {"partition": partition}
        decoded = typed.batch(batch)
        fields = zip(*(values_of(decoded.column(name)) for name in names), strict=True) if names else repeat(())
        lines = []
        for message, value, error in zip(
            messages_of(batch), fields, decoded.column(error_name).to_pylist(), strict=False
        ):
            is_decoded = error is None and message.value is not None
            row = which | json_row(message, dict(zip(names, value, strict=True)) if is_decoded else None)
            if error is not None:
                row[error_name] = error
            lines.append(encode(row) + b"\n")
        text = b"".join(lines)
        out.write(_for_terminal(text) if is_terminal else text)
        out.flush()


def _for_terminal(lines: bytes) -> bytes:
    text = printable_json(lines.decode())
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") in (None, "dumb"):
        return text.encode()
    from rich.highlighter import JSONHighlighter

    shown = output.console()
    with shown.capture() as capture:
        shown.print(JSONHighlighter()(text), end="")
    return capture.get().encode()


def json_row(message: Message, decoded: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a message as a JSON object, its value as it is or `decoded`. The order of the names is always the same."""
    row: dict[str, Any] = {
        "offset": message.offset,
        "timestamp": exact_time_text(message.timestamp_us),
        "subject": message.subject,
    }
    for name, data in (("key", message.key), ("value", message.value)):
        if name == "value" and decoded is not None:
            row[name] = decoded
            continue
        try:
            row[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            assert data is not None
            row[f"{name}_base64"] = base64.b64encode(data).decode()
    raw = message.headers.raw
    if raw is None:
        row["headers"] = None
    elif _is_text(raw):
        row["headers"] = {name: message.headers.get_all(name) for name in message.headers}
    else:
        row["headers_base64"] = base64.b64encode(raw).decode()
    return row


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def print_result_lines(batches: Iterator[pa.RecordBatch], out: BinaryIO | None) -> None:
    """Print rows of a query as JSON, by the names of their columns, which are distinct."""
    from penstock.ops.reading.files import values_of

    is_terminal = out is None and sys.stdout.isatty()
    out = out or sys.stdout.buffer
    encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
    for batch in batches:
        names = batch.schema.names
        columns = map(values_of, batch.columns)
        lines = b"".join(
            encode(dict(map(_json_field, names, row, repeat(names)))) + b"\n" for row in zip(*columns, strict=True)
        )
        out.write(_for_terminal(lines) if is_terminal else lines)
        out.flush()


def _json_field(name: str, value: Any, names: Container[str]) -> tuple[str, Any]:
    if not isinstance(value, bytes):
        return name, value
    try:
        return name, value.decode()
    except UnicodeDecodeError:
        name = f"{name}_base64"
        while name in names:
            name += "_base64"
        return name, base64.b64encode(value).decode()


def print_raw(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    for batch in batches:
        for value in batch.column("value").to_pylist():
            out.write((value or b"") + b"\n")
        out.flush()


def print_table(batches: Iterator[pa.RecordBatch], look: Look = Look()) -> None:
    """Print a table. The first batch determines the columns and their widths, so that lines can be printed at once."""
    layout: _Layout | None = None
    out = sys.stdout
    for batch in batches:
        if layout is None:
            layout = _Layout(batch, look, terminal=out.isatty())
            if layout.left_out:
                say_note(f"{counted(layout.left_out, 'more column')}: --wide shows all")
            out.write(layout.header() + "\n")
        out.write("".join(line + "\n" for line in layout.lines(batch)))
        out.flush()


class _Column(NamedTuple):
    at: int  # in the batch
    name: str
    title: str
    cells_min: int
    cells_max: int | None  # None: only the terminal limits it
    is_right: bool
    is_cut: bool  # if the room is short

    def cells_least(self, longest: int) -> int:
        """Return the least width of the column where its longest cell has so many."""
        least = max(width_of(self.title), _VALUE_CELLS_LEAST if self.name == "value" else _CELLS_LEAST)
        return least if self.is_cut and least < longest else longest


class _Layout:
    """Formats lines with fixed column widths.

    On a terminal cells are truncated to them, so that columns do not shift: all texts to the same width, those that
    are shorter have theirs, and the last column gets the rest. Columns that do not fit so are left out, but not the
    value, nor `decode_error`. Elsewhere, and with `wide`, a longer cell shifts the rest of its line.
    """

    def __init__(self, batch: pa.RecordBatch, look: Look, *, terminal: bool) -> None:
        self._terminal = terminal
        self._cuts = terminal and not look.wide
        self._is_log = look.is_log
        columns = _columns(batch.schema, look)
        wanted = [self._wanted(batch, column) for column in columns]
        self._columns = list(zip(columns, wanted, strict=True))  # with their widths
        if self._cuts and columns:
            self._columns = _shared(self._columns, shutil.get_terminal_size().columns)
        self.left_out = len(columns) - len(self._columns)

    def _wanted(self, batch: pa.RecordBatch, column: _Column) -> int:
        """Return the width that all cells of a batch fit into, or the most of the column."""
        longest = max(map(width_of, self._texts(batch, column, column.cells_max)), default=0)
        return max(width_of(column.title), column.cells_min if self._terminal else 0, longest)

    def header(self) -> str:
        """Return the header line."""
        line = _GAP.join(self._padded(column.title, column, width) for column, width in self._columns).rstrip()
        return f"{_BOLD}{line}{_RESET}" if self._terminal else line

    def lines(self, batch: pa.RecordBatch) -> Iterator[str]:
        """Yield a line of each row."""
        columns = []
        for column, width in self._columns:
            texts = self._texts(batch, column, width if self._cuts else None)
            columns.append([self._padded(text, column, width, _is_dim(column, text)) for text in texts])
        for cells in zip(*columns, strict=True):
            yield _GAP.join(cells).rstrip()

    def _padded(self, text: str, column: _Column, width: int, is_dim: bool = False) -> str:
        free = " " * (width - width_of(text))
        if self._terminal and is_dim and self._is_log:
            text = f"{_DIM}{text}{_RESET}"
        if column.is_right:
            return free + text
        return text if column is self._columns[-1][0] else text + free

    def _texts(self, batch: pa.RecordBatch, column: _Column, cells_max: int | None) -> list[str]:
        """Return the cells of one column of a batch."""
        import pyarrow as pa

        from penstock.ops.reading.files import values_of

        array = batch.column(column.at)
        if pa.types.is_timestamp(array.type):
            times = map(time_text, array.cast(pa.timestamp("us"), safe=False).cast(pa.int64()).to_pylist())
            return list(times) if array.type.tz else [one.removesuffix("Z") for one in times]
        values = values_of(array)
        if self._is_log and column.name == "headers":
            values = list(map(headers_line, values))
        if self._is_log and column.name == "value" and pa.types.is_binary(array.type):
            return [_TOMBSTONE if one is None else _cell(one, cells_max) for one in values]
        return [_cell(one, cells_max) for one in values]


def _shared(wanted: list[tuple[_Column, int]], room: int) -> list[tuple[_Column, int]]:
    """Return the columns that fit, with their shares of the room: no text has more than another one lacks."""
    least = [column.cells_least(width) for column, width in wanted]
    kept = [len(wanted) - 1] if wanted[-1][0].name in ("value", "decode_error") else []
    left = room - sum(least[at] + len(_GAP) for at in kept) + len(_GAP)
    for at in range(len(wanted) - len(kept)):
        left -= least[at] + len(_GAP)
        if left < 0 and (kept or at):
            break
        kept.append(at)
    kept.sort()
    room -= len(_GAP) * (len(kept) - 1)

    def shares(most: int) -> list[int]:
        return [max(least[at], min(wanted[at][1], most)) for at in kept]

    widths = next((found for most in range(room, 0, -1) if sum(found := shares(most)) <= room), shares(0))
    widths[-1] += max(0, room - sum(widths))
    return [(wanted[at][0], width) for at, width in zip(kept, widths, strict=True)]


def _is_dim(column: _Column, text: str) -> bool:
    return column.name == "timestamp" or text == _TOMBSTONE


def _columns(schema: pa.Schema, look: Look) -> list[_Column]:
    names = _ordered(schema.names, look) if look.is_log else schema.names
    return [
        _column(schema.names.index(name) if look.is_log else at, name, schema, look) for at, name in enumerate(names)
    ]


def _ordered(names: list[str], look: Look) -> list[str]:
    """Return the columns of messages in the order of the table."""
    first = [name for name in ("partition", "offset", "timestamp", "subject", "key") if name in names]
    shown = [*first, *(["headers"] if look.headers and "headers" in names else [])]
    return [*shown, *(name for name in names if name not in (*shown, "headers"))]


def _column(at: int, name: str, schema: pa.Schema, look: Look) -> _Column:
    import pyarrow as pa

    kind = schema.field(at).type
    is_right = bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
    is_cut = not (is_right or pa.types.is_timestamp(kind))
    if look.is_log and name in _LOG_COLUMNS and (name != "value" or pa.types.is_binary(kind)):
        return _Column(at, name, *_LOG_COLUMNS[name], is_right, is_cut)
    return _Column(at, name, printable(name), 0, _OTHER_CELLS_MAX, is_right, is_cut)


def _cell(value: Any, cells_max: int | None) -> str:
    if isinstance(value, bytes):
        return shown_bytes(value, cells_max)
    if value is None:
        return ""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, dict | list):
        text = msgspec.json.encode(value, enc_hook=str).decode()
    else:
        text = str(value)
    text = printable(text)
    return text if cells_max is None else cut(text, cells_max)


def headers_line(block: bytes | None) -> str:
    """Return a NATS header block on one line: `Colour: red, Size: 3`."""
    from penstock.client.values import Headers

    headers = Headers(block)
    return ", ".join(f"{name}: {value}" for name in headers for value in headers.get_all(name))
