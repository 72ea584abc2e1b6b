"""SQL over streams, by DuckDB in this process.

Rules: a table named like a stream is that stream, up to where its log ends when the query begins; only the columns that
the query names are fetched. Conditions on `offset`, `timestamp`, `partition` and `subject = …` that hold for all rows
narrow what is fetched; DuckDB's filter runs on what comes. DuckDB reaches no file and no network, and its memory is
limited; beyond it, it spills to a temporary folder.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.subjects import subject_mistake
from penstock.client.checks import COLUMNS, require
from penstock.client.errors import StreamNotFound
from penstock.client.read.filters import Filter
from penstock.client.read.json_columns import JsonColumns
from penstock.client.values import EARLIEST, LATEST, OffsetAt, Start
from penstock.messages import StreamInfo
from penstock.ops.reading.files import plain, plain_schema

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from penstock.client.blocking.client import Client

T = TypeVar("T")

_ROWS_AT_ONCE = 10_000  # of a result
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
_CONDITION = re.compile(r"(offset|timestamp|partition|subject) (==|>=|<=|>|<) (\S+(?: [\d:.]+Z?)?)")


class SqlOptions(NamedTuple):
    """Options of a query: the part of each stream that it sees, and the decoding of values."""

    start: Start = EARLIEST
    end: Start | None = None  # None: where the log ends now
    subject: str | None = None  # a pattern
    decodes_json: bool = False  # fields of JSON values are columns in place of `value`
    memory_bytes: int = limits.SQL_MEMORY_BYTES_DEFAULT


class Result(NamedTuple):
    """The rows of a query, and what the caller should be told."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    notes: list[str]


@contextmanager
def sql(
    client: Client, query: str, wanted: SqlOptions | None = None, *, timeout: float = 10.0
) -> Generator[Result, None, None]:
    """Run a query; yield its result, whose `notes` has, at the end, sentences on what was not decoded.

    ImportError without the extra `duckdb`. StreamNotFound: a table is no stream. ValueError: DuckDB refuses the query.
    OperationalError: it fails, for instance for lack of memory. Errors of `Client.read`.
    """
    require("duckdb")
    import duckdb

    wanted = wanted or SqlOptions()

    with tempfile.TemporaryDirectory(prefix="penstock-sql-", ignore_cleanup_errors=True) as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "memory_limit": f"{wanted.memory_bytes}B",
            "temp_directory": folder,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        connection = duckdb.connect(":memory:", config=settings)
        beside = ThreadPoolExecutor(1, "penstock-sql")  # DuckDB may compute for minutes without looking for signals
        notes: list[str] = []
        tables: list[_Table] = []
        missing: list[StreamNotFound] = []
        try:
            connection.execute("SET python_enable_replacements = false")  # else variables of this program are tables
            with suppress(duckdb.Error):  # a build without time zones
                connection.execute("SET TimeZone = 'UTC'")
            try:
                for name in sorted(_table_names(connection, query)):
                    try:
                        info = client.stream(name, timeout=timeout)
                    except StreamNotFound as error:
                        missing.append(error)
                        continue
                    tables.append(_Table(client, info, wanted, timeout))
                    connection.register(name, tables[-1].dataset())
                result: Any = connection.sql(query)
                if result is None:
                    raise ValueError("the statement gives no rows; write a SELECT")
                # The name since DuckDB 2.
                make = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
                reader = beside.submit(make, _ROWS_AT_ONCE).result()
                yield Result(reader.schema, iter(lambda: beside.submit(next, reader, None).result(), None), notes)
                for table in tables:
                    notes += [f"{table.name}: {sentence}" for sentence in table.decoder.report.sentences()]
            except (duckdb.Error, OSError, RuntimeError, ValueError) as error:
                if (cause := next((table.error for table in tables if table.error), None)) is not None:
                    raise cause from None
                if missing and isinstance(error, duckdb.CatalogException):
                    raise missing[0] from None
                if isinstance(error, duckdb.ParserException | duckdb.BinderException | duckdb.CatalogException):
                    raise ValueError(_plainly(error)) from None
                if isinstance(error, duckdb.Error):
                    raise OperationalError(_plainly(error)) from None
                raise
        finally:
            for table in tables:
                table.stop()
            connection.interrupt()
            beside.shutdown()  # after which no thread of DuckDB's is in a reader
            result = reader = None
            connection.close()
            for table in tables:
                table.close()


def _table_names(connection: duckdb.DuckDBPyConnection, query: str) -> set[str]:
    """Return the names of tables in a query, and perhaps of others, such as those that it defines."""
    import duckdb

    try:
        return set(connection.get_table_names(query))
    except duckdb.BinderException:  # it looks into the tables for JOIN … USING, and they are not there yet
        text = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0][0]
    names: set[str] = set()
    waiting = [json.loads(text)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict) and node.get("type") == "BASE_TABLE":
            names.add(str(node.get("table_name")))
        waiting += node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return names


def _plainly(error: Exception) -> str:
    return "\n".join(line for line in str(error).splitlines() if line.strip())


class _Scanner(NamedTuple):
    """Part of a pyarrow scanner that DuckDB calls.

    pyarrow's own reads ahead in a thread that may outlive the query, and then calls Python while the process ends.
    """

    reader: pa.RecordBatchReader

    def to_reader(self) -> pa.RecordBatchReader:
        return self.reader


class _Table:
    """One stream as a table of DuckDB."""

    def __init__(self, client: Client, info: StreamInfo, wanted: SqlOptions, timeout_s: float) -> None:
        from penstock.batch.schema import arrow_schema

        self.name = info.name
        self.error: Exception | None = None  # of reading: DuckDB would only pass on its text
        self.decoder = JsonColumns()
        self._client = client
        self._info = info
        self._wanted = wanted
        self._timeout_s = timeout_s
        self._stopped = False
        self._open: list[Generator[pa.RecordBatch, None, None]] = []
        self._has_partition = len(info.partitions) > 1
        self._ranges = {number: self._range(number) for number in range(max(1, len(info.partitions)))}
        self.schema = plain_schema(arrow_schema(), has_partition=self._has_partition)
        if wanted.decodes_json:
            self._infer()
            self.schema = self.decoder.schema(self.schema)

    def dataset(self) -> Any:
        """Return the pyarrow dataset, whose `scanner` DuckDB calls with the columns and the filter that it needs."""
        import pyarrow.dataset as ds

        table = self

        class Streamed(ds.InMemoryDataset):  # type: ignore[misc]
            def scanner(self, columns: list[str] | None = None, filter: Any = None, **options: Any) -> Any:  # noqa: A002
                return _Scanner(table.reader(columns, filter))

        return Streamed(self.schema.empty_table())

    def reader(self, columns: list[str] | None, where: Any) -> pa.RecordBatchReader:
        """Return a reader of some columns of the rows that the filter `where` passes; `close` ends it."""
        import pyarrow as pa

        names = self.schema.names if columns is None else columns
        words = set(re.findall(r"\w+", _TEXT.sub("", str(where))))
        needed = {*names, *(name for name in self.schema.names if name in words or not re.fullmatch(r"\w+", name))}
        schema = self.schema.empty_table().select([name for name in self.schema.names if name in needed]).schema
        if not schema.names:  # count(*)
            schema = self.schema.empty_table().select(["offset"]).schema
        batches = self._batches(schema, _narrowed([] if where is None else _conditions(str(where))))
        self._open.append(batches)
        passed = (
            (batch if where is None else batch.filter(where)).select(names) for batch in batches if not self._stopped
        )
        return pa.RecordBatchReader.from_batches(self.schema.empty_table().select(names).schema, passed)

    def stop(self) -> None:
        """Have the readers end after the batch that they are at."""
        self._stopped = True

    def close(self) -> None:
        """End the readers, which no thread of DuckDB uses any more."""
        for batches in self._open:
            batches.close()

    def _range(self, partition: int) -> tuple[int, int]:
        begin, end = self._at(partition, self._wanted.start), self._at(partition, LATEST)
        stop = end.committed_end
        if self._wanted.end is not None:
            place = self._wanted.end
            stop = min(stop, place if isinstance(place, int) else self._at(partition, place).offset)
        return begin.offset, stop

    def _at(self, partition: int, place: Start) -> OffsetAt:
        return self._client.offsets(self._info, place, partition=partition, timeout=self._timeout_s)

    def _infer(self) -> None:
        found: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in chain.from_iterable(self._read(number, ["value"], _Bounds()) for number in self._ranges):
            found.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= limits.DECODE_INFERRED_ROWS or size >= limits.DECODE_INFERRED_BYTES:
                break
        self.decoder.infer(found)

    def _batches(self, schema: pa.Schema, bounds: _Bounds) -> Generator[pa.RecordBatch, None, None]:
        import pyarrow as pa

        logs = [name for name in COLUMNS if name in schema.names and name in self._log_names()]
        decodes = self._wanted.decodes_json and any(name not in (*COLUMNS, "partition") for name in schema.names)
        decodes = decodes or (self._wanted.decodes_json and "value" in schema.names)
        columns = [*dict.fromkeys(["offset", *logs, *(["value"] if decodes else [])])]
        try:
            for number in self._ranges:
                if not bounds.has_partition(number):
                    continue
                for batch in self._read(number, columns, bounds):
                    rows = plain(batch, has_partition=self._has_partition)
                    rows = self.decoder.batch(rows) if decodes else rows
                    made = [rows.column(rows.schema.names.index(name)) for name in schema.names]
                    yield pa.RecordBatch.from_arrays(made, schema=schema)
        except Exception as error:
            self.error = error
            raise

    def _log_names(self) -> list[str]:
        return [name for name in COLUMNS if not (self._wanted.decodes_json and name == "value")]

    def _read(self, partition: int, columns: list[str], bounds: _Bounds) -> Iterator[pa.RecordBatch]:
        start, end = self._ranges[partition]
        start, end = max(start, bounds.offset), min(end, bounds.offset_end)
        if bounds.time is not None and start < end:
            start = max(start, self._at(partition, bounds.time).offset)
        if bounds.time_end is not None and start < end:
            end = min(end, self._at(partition, bounds.time_end).offset)
        if start >= end:
            return
        subject = bounds.subject if self._wanted.subject is None else self._wanted.subject
        where = None if subject is None else Filter(subject=subject)
        yield from self._client.read(
            self._info, start, end=end, partition=partition, columns=columns, where=where, timeout=self._timeout_s
        )


# Conditions of DuckDB's filter


class _Bounds(NamedTuple):
    """Conditions that all rows of a result meet; ends are exclusive."""

    offset: int = 0
    offset_end: int = 1 << 62
    time: datetime | None = None
    time_end: datetime | None = None
    partition: int | None = None
    subject: str | None = None

    def has_partition(self, number: int) -> bool:
        return self.partition in (None, number)


def _narrowed(conditions: list[tuple[str, str, Any]]) -> _Bounds:
    found = _Bounds()
    for name, relation, value in conditions:
        if name == "offset":
            if relation in ("==", ">", ">="):
                found = found._replace(offset=max(found.offset, value + (relation == ">")))
            if relation in ("==", "<", "<="):
                found = found._replace(offset_end=min(found.offset_end, value + (relation != "<")))
        elif name == "timestamp":
            if relation in ("==", ">", ">="):
                found = found._replace(time=max(found.time or value, value))
            if relation in ("==", "<", "<="):
                end = value + timedelta(microseconds=relation != "<")
                found = found._replace(time_end=min(found.time_end or end, end))
        elif relation == "==":
            found = found._replace(**{name: value})
    return found


def _conditions(filter_text: str) -> list[tuple[str, str, Any]]:
    """Return the comparisons that hold for all rows which pass a pyarrow filter, given as its text.

    pyarrow has no access to the parts of an expression. What is not understood is left out: less is narrowed then.
    """
    texts: list[str] = []

    def kept(match: re.Match[str]) -> str:
        texts.append(match[0][1:-1])
        return f"text{len(texts) - 1}"

    found = []
    for part in _conjuncts(_TEXT.sub(kept, filter_text)):
        match = _CONDITION.fullmatch(part)
        if match is not None and (value := _value(match[1], match[3], texts)) is not None:
            found.append((match[1], match[2], value))
    return found


def _conjuncts(text: str) -> Iterator[str]:
    """Yield the parts that `and` joins outside other operators."""
    text = text.strip()
    depth, begin, parts = 0, 0, []
    encloses = text.startswith("(") and text.endswith(")")
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        encloses = encloses and (depth > 0 or at == len(text) - 1)
        if depth == 0 and text.startswith(" and ", at):
            parts.append(text[begin:at])
            begin = at + len(" and ")
    if encloses:
        yield from _conjuncts(text[1:-1])
    elif parts and " or " not in _outside(text):
        for part in (*parts, text[begin:]):
            yield from _conjuncts(part)
    else:
        yield text


def _outside(text: str) -> str:
    """Return the text without what is in parentheses."""
    kept, depth = [], 0
    for char in text:
        depth -= char == ")"
        if depth == 0:
            kept.append(char)
        depth += char == "("
    return "".join(kept)


def _value(name: str, text: str, texts: list[str]) -> Any:
    if name in ("offset", "partition"):
        return int(text) if re.fullmatch(r"\d{1,18}", text) else None
    if name == "timestamp":
        match = re.fullmatch(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6})\d*Z?", text)
        return None if match is None else datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    subject = texts[int(text[4:])] if re.fullmatch(r"text\d+", text) else "*"
    return subject if subject_mistake(subject, wildcards=False) is None else None
