"""Typed columns of the data source: which versions of the schemas they are of, and Spark's schema of them.

Rules: the versions are chosen when Spark first requests the schema, and stay those of the DataFrame. A streaming query
notes them in its offsets, so its checkpoint holds them. When it goes on, its columns must be those that it began with:
its reader finds the versions in the checkpoint if the option `checkpointLocation` says where that is, or in
`schemaVersions`; without either, a query whose columns would change is refused, since a sink and a state of other
columns would fail later, or worse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.base.errors import ConfigError
from penstock.lake.reading.columns import COLUMNS, arrow_schema, checked_columns, known_column
from penstock.lake.reading.selection import choose
from penstock.lake.reading.typed import Pins, Typed, TypedColumns, registered, typed_by
from penstock.schemas.as_json import schemas_of_json
from penstock.spark import brokers
from penstock.spark.options.options import Decode, SourceOptions
from penstock.spark.options.positions import SCHEMAS, schema_versions

OFFSETS = "offsets"  # folder of a checkpoint: a file for each batch
HEAD_LINES = 2  # of such a file: a version and the batch's metadata; a line for each source follows


def planned(options: SourceOptions, decode: Decode) -> Typed:
    """Return what the typed columns are made by. Raise ConfigError, or an error of the client."""
    client = brokers.client(options.servers, options.timeout_s)
    streams = choose(client, options.selection, options.timeout_s).streams
    pins: Pins | None = decode.versions
    if pins is None and decode.checkpoint:
        pins = versions_in(decode.checkpoint)
    return typed_by(registered(client, streams, options.timeout_s), options.selection.subjects, pins)


def announced(options: SourceOptions, typed: Typed) -> StructType:
    """Return Spark's schema of a reader: the columns that the options name, or the log's and all typed ones."""
    made = TypedColumns(typed).schema
    names = [*options.columns, *made.names] if options.takes_all_columns else list(options.columns)
    there = {name.lower(): name for name in made.names}
    if unknown := [name for name in names if name not in COLUMNS and name.lower() not in there]:
        known = ", ".join([*COLUMNS, *made.names])
        raise ConfigError([f"columns: there is no column {unknown[0]!r}; there are {known}"])
    of_log = StructType.fromJson(from_arrow_schema(arrow_schema(tuple(COLUMNS))).jsonValue())
    of_values = from_arrow_schema(made)
    fields = [of_log[name] if name in COLUMNS else of_values[there[name.lower()]] for name in names]
    return StructType(fields)


def requested(schema: StructType, typed: Typed) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns to read, and the user's spelling of them. Raise ConfigError with all mistakes."""
    made = from_arrow_schema(TypedColumns(typed).schema)
    there = {name.lower(): name for name in made.fieldNames()}
    plain = [field for field in schema.fields if known_column(field.name) or field.name.lower() not in there]
    mistakes, found = [], dict[str, str]()
    known: dict[str, str] = {}
    try:
        keys = checked_columns([one.name for one in plain], [one.dataType.simpleString() for one in plain])
        known = {one.name: key for one, key in zip(plain, keys, strict=True)}
    except ConfigError as error:
        mistakes += [
            f"{one}, and {', '.join(made.fieldNames())}" if "; there are" in one else one for one in error.mistakes
        ]
    for field in schema.fields:
        column = known.get(field.name) or there.get(field.name.lower(), field.name)
        if column in found:
            mistakes.append(f"{field.name}: {found[column]} is given, too: leave out one")
        elif column in made.fieldNames():
            kind, wanted = made[column].dataType.simpleString(), field.dataType.simpleString()
            if kind != wanted:
                mistakes.append(f"{field.name}: it is of type {kind}, not {wanted}; cast it after reading")
        found.setdefault(column, field.name)
    if mistakes:
        raise ConfigError(mistakes)
    return tuple(found), tuple(found.values())


def versions_in(checkpoint: str) -> Pins | None:
    """Return the versions of schemas in a query's checkpoint; None if it has not begun. Raise ConfigError."""
    folder = Path(checkpoint.removeprefix("file://"))
    if "://" in str(checkpoint) and not checkpoint.startswith("file://"):
        text = (
            f"{checkpoint} is on no disk of the driver; give schemaVersions, such as the JSON of the query's progress"
        )
        raise ConfigError([f"checkpointLocation: {text}"])
    try:
        numbers = sorted(int(one.name) for one in (folder / OFFSETS).iterdir() if one.name.isdigit())
        if not numbers:
            return None
        lines = (folder / OFFSETS / str(numbers[-1])).read_text().splitlines()[HEAD_LINES:]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError([f"checkpointLocation: {folder} cannot be read: {error}"]) from None
    found: dict[str, Mapping[str, int]] = {}
    for line in lines:
        try:
            offsets = json.loads(line)
            noted = {name: one[SCHEMAS] for name, one in offsets.items() if SCHEMAS in one}
            found |= schema_versions(noted)
        except (ValueError, AttributeError, TypeError):
            continue  # of another source
    return found or None


def check_versions_of(begun: Pins, typed: Typed, decode: Decode | None) -> None:
    """Raise ConfigError if a query goes on with other typed columns than it began with, and no option asks for that."""
    known = typed.numbers()
    if decode is None or decode.versions is not None or not begun or begun == known:
        return
    schemas = [one for one in schemas_of_json(typed.schemas) if one.stream in begun]
    before = TypedColumns(typed_by(schemas, typed.subjects, begun)).schema if schemas else None
    if before is not None and before != TypedColumns(typed).schema:
        text = (
            "the query began with the columns of "
            f"{json.dumps(begun, sort_keys=True)}, and would go on with those of "
            f"{json.dumps(known, sort_keys=True)}: give the reader the option checkpointLocation, too, to keep them, "
            "or schemaVersions newest to change them"
        )
        raise ConfigError([f"schemaVersions: {text}"])
