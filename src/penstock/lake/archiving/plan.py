"""The plan of an archive, made of the arguments of `archive` and of the values that the first run has fixed.

Rules: all mistakes are reported together, before anything is written. The first run fixes an archive's name. A default
name contains a random id: two folders of the same name must be two archives to the brokers, because an archive hold
lets retention delete only messages that every archive has copied.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.lake.archiving.decoding import (
    COLUMNS,
    DECODERS,
    avro_type,
    data_columns,
    data_of,
    parsed_avro,
    rows_schema,
)
from penstock.lake.reading.selection import Selection, selection_of
from penstock.lake.reading.typed import Typed
from penstock.lake.tables.folder import other_in
from penstock.lake.tables.formats import FORMATS, open_table
from penstock.lake.tables.manifest import ArchiveManifest, read_about
from penstock.lake.tables.table import Table

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.ARCHIVE_NAME_CHARS_MAX}}}")
_ID_BYTES = 4
_LACKING: Mapping[str, Callable[[pa.DataType], bool]] = {"delta": pa.types.is_time, "iceberg": pa.types.is_null}
"""Tests for types that columns of a format cannot hold."""


@dataclass(frozen=True)
class Plan:
    """The parameters of `archive`, parsed and checked."""

    root: Path
    format: str
    selection: Selection
    name: str
    stream: str = ""  # the selection as the user wrote it
    timeout_s: float = 60.0
    fail_on_data_loss: bool = True
    rows_max: int = limits.ARCHIVE_BATCH_ROWS_DEFAULT
    rows_min: int = 1
    delay_s: float = 0.0
    trigger_s: float = 0.0
    file_bytes: int = limits.LAKE_FILE_BYTES_DEFAULT
    decode: str = ""
    schema: str = ""
    data: pa.DataType | None = None  # of the column `data`; None: nothing is decoded
    typed: Typed | None = None  # with registered schemas: what rows are decoded by

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to fetch."""
        return COLUMNS if self.typed is None else data_columns(self.typed)

    def open_table(self) -> Table:
        """Return the archive's table. Raise ConfigError if the folder holds an archive of another format."""
        about = read_about(self.root)
        if about is not None and about.format != self.format:
            raise ConfigError([f"format: {self.root} is an archive as {about.format}, not {self.format}"])
        return open_table(self.root, self.format, rows_schema(self.data))


class JsonDecoder(NamedTuple):
    """JSON, as the runner of an archive decodes it: a schema inferred from the first messages, and its Arrow type."""

    inferred: Callable[[], str]
    data_type: Callable[[str], pa.DataType]


Types = Callable[[str], tuple[str, Typed]]
"""Function from the schemas that an archive has kept, or "", to those that it keeps, and what rows are decoded by."""


def decoded(plan: Plan, decode: str, schema: str, types: Types, json: JsonDecoder | None = None) -> Plan:
    """Return the plan with the decoder and schema of the first run. The first run infers a missing JSON schema.

    `types`: as of `archived_types`. Raise ConfigError if the arguments are invalid or differ from those of the first
    run, or if values are JSON and `json` is None.
    """
    about = read_about(plan.root)
    if decode and decode not in DECODERS:
        raise ConfigError([f"decode: it is {decode!r}; there are {', '.join(DECODERS)}"])
    if schema and not decode and about is None:
        raise ConfigError(["schema: nothing is decoded by it; give decode, too"])
    if decode == "schema" and schema:
        raise ConfigError(["schema: with decode schema it is the registered ones; leave it out"])
    if decode == "avro" and not schema and about is None:
        raise ConfigError(["schema: Avro cannot be read without one"])
    if about is not None:
        given = {"decode": (decode, about.decode), "schema": (schema, about.schema)}
        if other := [name for name, (mine, fixed) in given.items() if mine and mine != fixed]:
            text = f"the first run of {plan.root} has fixed another one; leave it out, or archive elsewhere"
            raise ConfigError([f"{name}: {text}" for name in other])
        decode, schema = about.decode, about.schema
    if not decode:
        return plan
    if decode == "schema":
        schema, typed = types(schema)
        return _storable(replace(plan, decode=decode, schema=schema, data=data_of(typed), typed=typed))
    if decode == "avro":
        return _storable(replace(plan, decode=decode, schema=schema, data=avro_type(parsed_avro(schema))))
    if json is None:
        text = "it is json, which needs Spark" if about is None else f"{plan.root} decodes json, which needs Spark"
        raise ConfigError([f"decode: {text}: `penstock pipeline archive`"])
    schema = schema or json.inferred()
    return _storable(replace(plan, decode=decode, schema=schema, data=json.data_type(schema)))


def _storable(plan: Plan) -> Plan:
    """Return a plan. Raise ConfigError if its format has no type for some decoded values."""
    is_lacking = _LACKING.get(plan.format)
    if is_lacking is None or plan.data is None:
        return plan
    if (lacking := next(filter(is_lacking, _parts(plan.data)), None)) is not None:
        text = f"{plan.format} has no column type for {lacking}; archive as parquet, or decode by another schema"
        raise ConfigError([f"schema: {text}"])
    return plan


def _parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the types of which a type consists, without those that are nested."""
    if not pa.types.is_nested(kind):
        yield kind
    elif pa.types.is_map(kind):
        yield from (part for one in (kind.key_type, kind.item_type) for part in _parts(one))
    else:
        yield from (part for number in range(kind.num_fields) for part in _parts(kind.field(number).type))


def plan_of(
    stream: str,
    to: str | Path,
    *,
    format: str,  # noqa: A002
    name: str,
    max_batch: int,
    min_batch: int,
    max_delay_s: float,
    trigger_s: float,
    file_bytes: int,
    fail_on_data_loss: bool,
    timeout_s: float = 60.0,
    also: Sequence[str] = (),
) -> Plan:
    """Check the arguments of `archive`. Raise ConfigError with all mistakes; `also`: those of other arguments."""
    mistakes = list(also)
    if format not in FORMATS:
        mistakes.append(f"format: it is {format!r}; there are {', '.join(FORMATS)}")
    if not limits.LAKE_FILE_BYTES_MIN <= file_bytes <= limits.LAKE_FILE_BYTES_MAX:
        bounds = f"{limits.LAKE_FILE_BYTES_MIN} to {limits.LAKE_FILE_BYTES_MAX}"
        mistakes.append(f"file_bytes: it is {file_bytes}; give {bounds}")
    if not 1 <= min_batch <= max_batch:
        mistakes.append(f"min_batch: it is {min_batch}; give 1 up to max_batch, {max_batch}")
    if "://" in str(to):
        mistakes.append(f"to: {to} is no folder; mount it where all that write it see it by the same path")
    selection = None
    try:
        selection = selection_of(stream)
    except ConfigError as error:
        mistakes += error.mistakes
    root = Path(to).absolute()
    if root.exists() and not root.is_dir():
        mistakes.append(f"to: {root} is no folder")
    about = None if mistakes else read_about(root)
    if about is None and not mistakes and (there := other_in(root)):
        mistakes.append(f"to: {root} is not an archive and contains {there}; give an empty folder")
    mistakes += _name_mistakes(name, about)
    if mistakes or selection is None:
        raise ConfigError(mistakes)
    return Plan(
        root=root,
        format=format,
        selection=selection,
        name=(about.name if about else "") or name or default_name(root),
        stream=stream,
        timeout_s=timeout_s,
        fail_on_data_loss=fail_on_data_loss,
        rows_max=max_batch,
        rows_min=min_batch,
        delay_s=max_delay_s,
        trigger_s=trigger_s,
        file_bytes=file_bytes,
    )


def _name_mistakes(name: str, about: ArchiveManifest | None) -> list[str]:
    if not name:
        return []
    if not _NAME.fullmatch(name):
        text = f"give up to {limits.ARCHIVE_NAME_CHARS_MAX} letters, digits, `.`, `-` and `_`"
        return [f"name: it is {name!r}; {text}"]
    if about is not None and about.name not in ("", name):
        return [f"name: the first run has named this archive {about.name}; leave it out, or archive elsewhere"]
    return []


def default_name(root: Path) -> str:
    """Return the folder's name with a random id: other machines may archive into folders of the same name."""
    mark = secrets.token_hex(_ID_BYTES)
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in root.name)
    return f"{kept[: limits.ARCHIVE_NAME_CHARS_MAX - len(mark) - 1] or 'lake'}-{mark}"
