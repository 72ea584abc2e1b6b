"""SQL over streams, by DuckDB in this process.

Rules: a table named like a stream is that stream, up to where its log ends when the query begins; only the columns that
the query names are fetched. Conditions on `offset`, `timestamp`, `partition` and `subject = …` that hold for all rows
narrow what is fetched; DuckDB's filter runs on what comes. DuckDB reaches no file and no network, and its memory is
limited; beyond it, it spills to a temporary folder.

DuckDB sees a stream through a view, over a dataset whose decoded columns are `c0`, `c1`, ...: publishers choose names
of fields, and pyarrow prints names in filters unescaped. SQL does not tell names apart by case: the view has `id` and
`ID_1` for the fields `id` and `ID`.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.base.subjects import subject_mistake
from penstock.client.blocking.decoding import schemas_to_decode
from penstock.client.checks import COLUMNS, place_of, require
from penstock.client.errors import StreamNotFound
from penstock.client.places import LastMessages
from penstock.client.read.decoding import NEEDED, Decode, TypedColumns, decode_of
from penstock.client.read.filters import Filter
from penstock.client.read.json_columns import JsonColumns
from penstock.client.values import EARLIEST, LATEST, Headers, OffsetAt, Start
from penstock.messages import StreamInfo
from penstock.ops.errors import ArgumentError
from penstock.ops.reading.files import plain, plain_schema

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from penstock.client.blocking.client import Client


_ROWS_AT_ONCE = 10_000  # of a result
_NAMES_SAID_MAX = 10
_TOKEN = re.compile(
    r"""
    ("(?:[^"\\]|\\.)*")  # a text, which pyarrow escapes
    | \{value_set=u?int\d+:\[[\s\d,.-]*\],\ null_matching_behavior=\w+\}
    | null\[\w+\]
    | [^"{\[]
    """,
    re.VERBOSE,
)
_CONDITION = re.compile(r"(offset|timestamp|partition|subject) (==|>=|<=|>|<) (\S+(?: [\d:.]+Z?)?)")


class QueryOptions(NamedTuple):
    """Options of a query: the part of each stream that it sees, and the decoding of values."""

    start: Start = EARLIEST
    end: Start | None = None  # None: where the log ends now
    subject: str | None = None  # a pattern
    decode: Decode | None = None  # columns in place of `value`: of JSON's fields, or by each stream's schemas
    memory_bytes: int = limits.SQL_MEMORY_BYTES_DEFAULT


class QueryResult(NamedTuple):
    """The rows of a query, and what the caller should be told."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    notes: list[str]


@contextmanager
def query_streams(
    client: Client, query: str, options: QueryOptions | None = None, *, timeout: float = 10.0
) -> Generator[QueryResult, None, None]:
    """Run a query in DuckDB's SQL; yield its result, whose `notes` has, at the end, what was not decoded.

    A table is the stream of its name. `timeout` is in seconds, of each request to a broker.

    ImportError without the extra `duckdb`. StreamNotFound: a table is no stream. ArgumentError: `options` do not fit a
    stream. ValueError: DuckDB refuses the query. OperationalError: it fails, for instance for lack of memory. Errors of
    `Client.read`.
    """
    require("duckdb")
    import duckdb

    options = options or QueryOptions()

    with tempfile.TemporaryDirectory(prefix="penstock-sql-", ignore_cleanup_errors=True) as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "enable_external_access": "false",
            "memory_limit": f"{options.memory_bytes}B",
            "temp_directory": folder,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
        }
        connection = duckdb.connect(":memory:", config=settings)
        beside = ThreadPoolExecutor(1, "penstock-sql")  # DuckDB may compute for minutes without looking for signals
        tables: list[_Table] = []
        try:
            yield from _queried(connection, beside, tables, client, query, options, timeout)
        finally:
            for table in tables:
                table.stop()
            connection.interrupt()
            beside.shutdown()  # after which no thread of DuckDB's is in a reader
            connection.close()
            for table in tables:
                table.close()


def _queried(
    connection: duckdb.DuckDBPyConnection,
    beside: ThreadPoolExecutor,
    tables: list[_Table],
    client: Client,
    query: str,
    options: QueryOptions,
    timeout: float,
) -> Generator[QueryResult, None, None]:
    import duckdb

    notes: list[str] = []
    missing: list[StreamNotFound] = []
    connection.execute("SET python_enable_replacements = false")  # else variables of this program are tables
    with suppress(duckdb.Error):  # a build without time zones
        connection.execute("SET TimeZone = 'UTC'")
    try:
        _check_statement(connection, query)
        for name in sorted(_table_names(connection, query)):
            try:
                info = client.stream(name, timeout=timeout)
            except StreamNotFound as error:
                missing.append(error)
                continue
            if other := next((one.name for one in tables if one.name.casefold() == info.name.casefold()), None):
                raise ValueError(f"SQL does not tell {other} and {info.name} apart by case: query one at a time")
            tables.append(_Table(client, info, options, timeout))
            tables[-1].register(connection)
        result: Any = connection.sql(query)
        if result is None:
            raise ValueError("the statement gives no rows; write a SELECT")
        # The name since DuckDB 2.
        make = getattr(result, "to_arrow_reader", None) or result.fetch_arrow_reader
        reader = beside.submit(make, _ROWS_AT_ONCE).result()
        names = _distinct(reader.schema.names)
        schema = _renamed(reader.schema, names)
        batches = iter(lambda: beside.submit(next, reader, None).result(), None)
        yield QueryResult(schema, (batch.rename_columns(names) for batch in batches), notes)
        for table in tables:
            notes += [f"{table.name}: {sentence}" for sentence in table.sentences()]
        if tables and options.decode is None and _JSON_OF_BYTES.search(query):
            notes.append(f"value is a BLOB, in which SQL finds no JSON: {_JSON_ADVICE}")
    except (duckdb.Error, OSError, RuntimeError, ValueError) as error:
        if (cause := next((table.error for table in tables if table.error), None)) is not None:
            raise cause from None
        if missing and isinstance(error, duckdb.CatalogException):
            raise missing[0] from None
        refusals = (
            duckdb.ParserException,
            duckdb.BinderException,
            duckdb.CatalogException,
            duckdb.InvalidInputException,
        )
        if isinstance(error, refusals):
            text = _plainly(error)
            if 'at or near "offset"' in text:
                text += '\noffset is a word of SQL: write "offset"'
            raise ValueError(text) from None
        if isinstance(error, duckdb.Error):
            raise OperationalError(_plainly(error)) from None
        raise


_JSON_OF_BYTES = re.compile(r"\bvalue\b\"?\s*(?:->|::\s*json)|\bjson\w*\(\s*(?:\w+\.)?\"?value\b", re.IGNORECASE)
_JSON_ADVICE = (
    "write decode(value)->>'field', or use --decode json (decode=\"json\" in Python), which makes its fields columns"
)


def _check_statement(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Raise ValueError if the query is not one statement that reads."""
    import duckdb

    found = connection.extract_statements(query)
    if not found:
        raise ValueError("the query is empty; write a SELECT")
    words = re.sub(r"\A(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)+", "", query, flags=re.DOTALL)
    if re.match(r"show\s+(?:all\s+)?tables\b", words, re.IGNORECASE):
        raise ValueError("the tables are the streams: `penstock stream list` shows them")
    if len(found) > 1:
        raise ValueError(f"give one statement, not {len(found)}")
    if re.match(r"pivot\b", words, re.IGNORECASE) and found[0].type is not duckdb.StatementType.SELECT:
        raise ValueError("PIVOT needs the values of its columns: PIVOT … ON subject IN ('a', 'b')")
    reads = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
    if found[0].type not in reads:
        raise ValueError(f"streams are only read here, and this is {found[0].type.name}: write a SELECT")


def _distinct(names: Iterable[str], *, by_case: bool = True) -> list[str]:
    """Return the names with a suffix where one repeats: `offset`, `offset_1`."""
    given = list(names)
    fold: Callable[[str], str] = str if by_case else str.lower
    taken, free = set[str](), {fold(name) for name in given}
    made = []
    for name in given:
        number, found = 0, name
        while fold(found) in taken or (number and fold(found) in free):
            number += 1
            found = f"{name}_{number}"
        taken.add(fold(found))
        made.append(found)
    return made


def _renamed(schema: pa.Schema, names: list[str]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field.with_name(name) for field, name in zip(schema, names, strict=True)], schema.metadata)


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

    def __init__(self, client: Client, info: StreamInfo, options: QueryOptions, timeout_s: float) -> None:
        """ArgumentError: an offset, or a number of messages, with several partitions."""
        import pyarrow as pa

        from penstock.batch.schema import arrow_schema

        self.name = info.name
        self.error: Exception | None = None  # of reading: DuckDB would only pass on its text
        self._decoder = _decoder_of(client, info, options, timeout_s)
        self._client = client
        self._info = info
        self._options = options
        self._timeout_s = timeout_s
        self._stopped = False
        self._open: list[Generator[pa.RecordBatch, None, None]] = []
        self._has_partition = len(info.partitions) > 1
        places = place_of(options.start), place_of(options.end)
        if self._has_partition and any(isinstance(one, int | LastMessages) for one in places):
            text = f"{info.name} has {len(info.partitions)} partitions, each with offsets of its own"
            raise ArgumentError(f"{text}: give a time, or conditions on partition and offset in the query")
        self._ranges = {number: self._range(number) for number in range(max(1, len(info.partitions)))}
        schema = plain_schema(arrow_schema(), has_partition=self._has_partition)
        self._log_names = [name for name in schema.names if not (self._decoder and name == "value")]
        self._fields: list[str] = []
        if self._decoder is not None:
            self._infer()
            schema = self._decoder.schema(schema)
            self._fields = schema.names[len(self._log_names) :]
        names = [*self._log_names, *(f"c{number}" for number in range(len(self._fields)))]
        schema = _renamed(schema, names)
        kind = pa.map_(pa.string(), pa.list_(pa.string()))
        self.schema = schema.set(names.index("headers"), pa.field("headers", kind))
        self._shown = _distinct([*self._log_names, *self._fields], by_case=False)

    def register(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the stream a view of its name."""
        rows = f"{self.name} rows"  # no stream has a space in its name
        connection.register(rows, self.dataset())
        columns = ", ".join(
            f"{_quoted(name)} AS {_quoted(shown)}" for name, shown in zip(self.schema.names, self._shown, strict=True)
        )
        select = f"SELECT {columns} FROM {_quoted(rows)}"  # noqa: S608 (names are quoted)
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {_quoted(self.name)} AS {select}")

    def sentences(self) -> list[str]:
        """Return what users should know of the decoding: fields under other names, and the counts of `JsonReport`."""
        shown = self._shown[len(self._log_names) :]
        renamed = [f"{name!r} is {new}" for name, new in zip(self._fields, shown, strict=True) if name != new]
        said = [f"SQL does not tell names apart by case: {', '.join(renamed[:_NAMES_SAID_MAX])}"] if renamed else []
        return [*said, *([] if self._decoder is None else self._decoder.report.sentences())]

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
        needed = {*names, *re.findall(r"\w+", str(where))}  # perhaps more than the filter needs
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
        begin, end = self._at(partition, self._options.start), self._at(partition, LATEST)
        stop = end.committed_end
        if self._options.end is not None:
            place = self._options.end
            stop = min(stop, place if isinstance(place, int) else self._at(partition, place).offset)
        return begin.offset, stop

    def _at(self, partition: int, place: Start) -> OffsetAt:
        return self._client.offsets(self._info, place, partition=partition, timeout=self._timeout_s)

    def _infer(self) -> None:
        """Infer the columns from the first values, unless schemas say them."""
        if not isinstance(self._decoder, JsonColumns):
            return
        found: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in chain.from_iterable(self._read(number, ["value"], _Bounds()) for number in self._ranges):
            found.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= limits.DECODE_INFERRED_ROWS or size >= limits.DECODE_INFERRED_BYTES:
                break
        self._decoder.infer(found)

    def _batches(self, schema: pa.Schema, bounds: _Bounds) -> Generator[pa.RecordBatch, None, None]:
        import pyarrow as pa

        logs = [name for name in COLUMNS if name in schema.names and name in self._log_names]
        decoder = self._decoder if any(name not in self._log_names for name in schema.names) else None
        needed = () if decoder is None else NEEDED if isinstance(decoder, TypedColumns) else ("value",)
        columns = [*dict.fromkeys(["offset", *logs, *needed])]
        try:
            for number in self._ranges:
                if not bounds.has_partition(number):
                    continue
                for batch in self._read(number, columns, bounds):
                    rows = plain(batch, has_partition=self._has_partition)
                    rows = rows if decoder is None else decoder.batch(rows)
                    found = dict(zip(self._names(rows), rows.columns, strict=True))
                    if "headers" in found:
                        found["headers"] = headers_maps(found["headers"])
                    yield pa.RecordBatch.from_arrays([found[name] for name in schema.names], schema=schema)
        except Exception as error:
            self.error = error
            raise

    def _names(self, rows: pa.RecordBatch) -> list[str]:
        """Return the names in `self.schema` of the columns of a batch: the decoded ones come last."""
        logs = [name for name in rows.schema.names if name in self._log_names]
        return [*logs, *(f"c{number}" for number in range(rows.num_columns - len(logs)))]

    def _read(self, partition: int, columns: list[str], bounds: _Bounds) -> Iterator[pa.RecordBatch]:
        start, end = self._ranges[partition]
        start, end = max(start, bounds.offset), min(end, bounds.offset_end)
        if bounds.time is not None and start < end:
            start = max(start, self._at(partition, bounds.time).offset)
        if bounds.time_end is not None and start < end:
            end = min(end, self._at(partition, bounds.time_end).offset)
        if start >= end:
            return
        subject = bounds.subject if self._options.subject is None else self._options.subject
        where = None if subject is None else Filter(subject=subject)
        yield from self._client.read(
            self._info, start, end=end, partition=partition, columns=columns, where=where, timeout=self._timeout_s
        )


def _decoder_of(
    client: Client, info: StreamInfo, options: QueryOptions, timeout_s: float
) -> JsonColumns | TypedColumns | None:
    """Return what decodes the values of a stream. SchemaError: by schemas, and it has none."""
    decode = decode_of(options.decode)
    if decode is None:
        return None
    if decode == "json":
        return JsonColumns()
    from penstock.schemas.plans import EnumStyle

    schemas = schemas_to_decode(client, info, timeout_s) if decode == "schema" else decode
    subjects = None if options.subject is None else [options.subject]
    return TypedColumns(schemas, subjects=subjects, enums=EnumStyle.STRING)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def headers_maps(blocks: pa.Array) -> pa.Array:
    """Return NATS header blocks as maps of names to lists of values; bytes that are not UTF-8 are U+FFFD."""
    import pyarrow as pa

    kind = pa.map_(pa.string(), pa.list_(pa.string()))
    found = blocks.dictionary_encode()
    maps = pa.array([_headers(block) for block in found.dictionary.to_pylist()], kind)
    return maps.take(found.indices)


def _headers(block: bytes) -> list[tuple[str, list[str]]]:
    headers = Headers(block.decode(errors="replace").encode())
    return [(name, headers.get_all(name)) for name in headers]


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

    pyarrow has no access to the parts of an expression. It escapes single texts, but not lists of them, values inside
    structs, or names of columns and fields. Here names are `_Table.schema`'s; a filter with anything else that is not
    escaped narrows nothing. Nor does what is not understood.
    """
    texts: list[str] = []
    kept: list[str] = []
    at = 0
    while at < len(filter_text):  # from the left: what is before the first unescaped thing is as it seems
        if (match := _TOKEN.match(filter_text, at)) is None:
            return []
        at = match.end()
        if match[1] is None:
            kept.append(match[0])
        else:
            kept.append(f'"{len(texts)}"')  # the quotes: no name looks so
            texts.append(match[1][1:-1])
    if "FieldRef" in (text := "".join(kept)):  # of a field of a struct
        return []

    found = []
    for part in _conjuncts(text):
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
    subject = texts[int(text[1:-1])] if re.fullmatch(r'"\d+"', text) else "*"
    if "\\" in subject:  # pyarrow's text has escapes, of backslashes and quotes among others
        return None
    return subject if subject_mistake(subject, wildcards=False) is None else None
