"""Prints messages to stdout. Each batch is written and flushed as a whole, so that a reader gets it at once.

| format | what is printed                                                               |
|--------|-------------------------------------------------------------------------------|
| table  | one line per message; on a terminal values are truncated to its width         |
| json   | one object per line; bytes that are not UTF-8 are in `…_base64` instead; on a |
|        | terminal, control characters are JSON escapes                                 |
| raw    | the value and a line end; a tombstone is an empty line                        |
| arrow  | an Arrow IPC stream of the log's six columns                                  |
"""

from __future__ import annotations

import base64
import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.cli.terminal.failure import printable_json
from penstock.cli.terminal.output import exact_time_text, padded, shown_bytes, time_text, width_of

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.values import Message

_SUBJECT_CELLS_MAX = 40
_KEY_CELLS_MAX = 24
_VALUE_CELLS_MIN = 20
_GAP = "  "
_BOLD, _DIM, _RESET = "\x1b[1m", "\x1b[2m", "\x1b[0m"

_encode = msgspec.json.Encoder().encode


def print_json_lines(batches: Iterator[pa.RecordBatch]) -> None:
    from penstock.client.read.batches import messages_of, partition_of

    out, is_terminal = sys.stdout.buffer, sys.stdout.isatty()
    for batch in batches:
        partition = partition_of(batch)
        which = {} if partition is None else {"partition": partition}
        lines = b"".join(_encode(which | json_row(message)) + b"\n" for message in messages_of(batch))
        out.write(printable_json(lines.decode()).encode() if is_terminal else lines)
        out.flush()


def json_row(message: Message) -> dict[str, Any]:
    """Return a message as a JSON object."""
    row: dict[str, Any] = {
        "offset": message.offset,
        "timestamp": exact_time_text(message.timestamp_us),
        "subject": message.subject,
    }
    for name, data in (("key", message.key), ("value", message.value)):
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


def print_raw(batches: Iterator[pa.RecordBatch]) -> None:
    out = sys.stdout.buffer
    for batch in batches:
        for value in batch.column("value").to_pylist():
            out.write((value or b"") + b"\n")
        out.flush()


def print_arrow(batches: Iterator[pa.RecordBatch]) -> None:
    """Print an Arrow IPC stream; it is complete also without messages."""
    import pyarrow as pa

    from penstock.batch.schema import arrow_schema

    out = sys.stdout.buffer
    with pa.ipc.new_stream(pa.PythonFile(out, mode="w"), arrow_schema()) as writer:
        for batch in batches:
            writer.write_batch(batch)
            out.flush()
    out.flush()


def print_table(batches: Iterator[pa.RecordBatch]) -> None:
    """Print a table. The first batch determines the column widths, so that lines can be printed at once."""
    from penstock.client.read.batches import messages_of

    layout: _Layout | None = None
    out = sys.stdout
    for batch in batches:
        messages = list(messages_of(batch))
        if layout is None:
            layout = _Layout(messages, terminal=out.isatty())
            out.write(layout.header() + "\n")
        out.write("".join(layout.line(message) + "\n" for message in messages))
        out.flush()


class _Layout:
    """Formats lines with fixed column widths."""

    def __init__(self, messages: list[Message], *, terminal: bool) -> None:
        self._terminal = terminal
        self._offset = max(6, *(len(str(message.offset)) for message in messages[-1:]))
        self._subject = _width(
            "SUBJECT", (shown_bytes(message.subject.encode()) for message in messages), _SUBJECT_CELLS_MAX
        )
        self._key = _width("KEY", (shown_bytes(message.key, _KEY_CELLS_MAX) for message in messages), _KEY_CELLS_MAX)
        used = self._offset + len(time_text(0)) + self._subject + self._key + 4 * len(_GAP)
        columns = shutil.get_terminal_size().columns
        self._value = max(_VALUE_CELLS_MIN, columns - used) if terminal else None

    def header(self) -> str:
        """Return the header line."""
        time = f"{'TIME':<{len(time_text(0))}}"
        names = (f"{'OFFSET':>{self._offset}}", time, f"{'SUBJECT':<{self._subject}}", f"{'KEY':<{self._key}}", "VALUE")
        line = _GAP.join(names)
        return f"{_BOLD}{line}{_RESET}" if self._terminal else line

    def line(self, message: Message) -> str:
        """Return a message's line; a longer subject or key shifts the columns after it instead of being truncated."""
        subject = shown_bytes(message.subject.encode())
        key = shown_bytes(message.key, _KEY_CELLS_MAX if self._terminal else None)
        value = "(tombstone)" if message.is_tombstone else shown_bytes(message.value, self._value)
        time = time_text(message.timestamp_us)
        if self._terminal:
            time = f"{_DIM}{time}{_RESET}"
            value = f"{_DIM}{value}{_RESET}" if message.is_tombstone else value
        return _GAP.join(
            (f"{message.offset:>{self._offset}}", time, padded(subject, self._subject), padded(key, self._key), value)
        ).rstrip()


def _width(title: str, texts: Iterator[str], cells_max: int) -> int:
    return min(cells_max, max((len(title), *(width_of(text) for text in texts))))
