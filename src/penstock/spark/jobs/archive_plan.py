"""The plan of an archive, made of the arguments of `archive` and of the values that the first run has fixed.

Rules: all mistakes are reported together, before anything is written. The first run fixes an archive's name. A default
name contains a random id: two folders of the same name must be two archives to the brokers, because an archive hold
lets retention delete only messages that every archive has copied.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.spark.jobs.archive_decoding import COLUMNS, DECODERS, inferred_json, rows_schema
from penstock.spark.lake.folder import other_in
from penstock.spark.lake.formats import FORMATS, open_table
from penstock.spark.lake.manifest import ArchiveManifest, about_file, read_about
from penstock.spark.lake.table import Table
from penstock.spark.options.options import SourceOptions, source_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.ARCHIVE_NAME_CHARS_MAX}}}")
_ID_BYTES = 4


@dataclass(frozen=True)
class Plan:
    """The parameters of `archive`, parsed and checked."""

    root: Path
    format: str
    source: SourceOptions
    name: str
    stream: str = ""
    rows_max: int = limits.ARCHIVE_BATCH_ROWS_DEFAULT
    rows_min: int = 1
    delay_s: float = 0.0
    trigger_s: float = 0.0
    file_bytes: int = limits.LAKE_FILE_BYTES_DEFAULT
    decode: str = ""
    schema: str = ""

    def open_table(self) -> Table:
        """Return the archive's table. Raise ConfigError if the folder holds an archive of another format."""
        about = read_about(self.root)
        if about is not None and about.format != self.format:
            raise ConfigError([f"format: {self.root} is an archive as {about.format}, not {self.format}"])
        return open_table(self.root, self.format, rows_schema(self.decode, self.schema))


def decoded(spark: SparkSession, plan: Plan, decode: str, schema: str) -> Plan:
    """Return the plan with the decoder and schema of the first run. The first run infers a missing JSON schema.

    Raise ConfigError if the arguments are invalid or differ from those of the first run.
    """
    if decode and decode not in DECODERS:
        raise ConfigError([f"decode: it is {decode!r}; there are {', '.join(DECODERS)}"])
    if schema and not decode and not about_file(plan.root).exists():
        raise ConfigError(["schema: nothing is decoded by it; give decode, too"])
    if decode == "avro" and not schema and not about_file(plan.root).exists():
        raise ConfigError(["schema: Avro cannot be read without one"])
    about = read_about(plan.root)
    if about is not None:
        given = {"decode": (decode, about.decode), "schema": (schema, about.schema)}
        if other := [name for name, (mine, fixed) in given.items() if mine and mine != fixed]:
            text = f"the first run of {plan.root} has fixed another one; leave it out, or archive elsewhere"
            raise ConfigError([f"{name}: {text}" for name in other])
        return replace(plan, decode=about.decode, schema=about.schema)
    if decode == "json" and not schema:
        options = {"servers": ",".join(plan.source.servers), "stream": plan.stream, "columns": "value"}
        schema = inferred_json(spark.read.format("penstock").options(**options).load())
    return replace(plan, decode=decode, schema=schema)


def plan_of(
    stream: str,
    to: str | Path,
    *,
    format: str,  # noqa: A002
    servers: str,
    name: str,
    max_batch: int,
    min_batch: int,
    max_delay_s: float,
    trigger_s: float,
    file_bytes: int,
    fail_on_data_loss: bool,
) -> Plan:
    """Check the arguments of `archive`. Raise ConfigError with all mistakes."""
    mistakes = []
    if format not in FORMATS:
        mistakes.append(f"format: it is {format!r}; there are {', '.join(FORMATS)}")
    if not limits.LAKE_FILE_BYTES_MIN <= file_bytes <= limits.LAKE_FILE_BYTES_MAX:
        bounds = f"{limits.LAKE_FILE_BYTES_MIN} to {limits.LAKE_FILE_BYTES_MAX}"
        mistakes.append(f"file_bytes: it is {file_bytes}; give {bounds}")
    if not 1 <= min_batch <= max_batch:
        mistakes.append(f"min_batch: it is {min_batch}; give 1 up to max_batch, {max_batch}")
    if "://" in str(to):
        mistakes.append(f"to: {to} is no folder; mount it where the driver and all workers see it by the same path")
    options = {"stream": stream, "failOnDataLoss": str(fail_on_data_loss).lower(), "servers": servers}
    source = None
    try:
        source = source_options(options)
    except ConfigError as error:
        mistakes += error.mistakes
    root = Path(to).absolute()
    about = None if mistakes else read_about(root)
    if about is None and not mistakes and (there := other_in(root)):
        mistakes.append(f"to: {root} is not an archive and contains {there}; give an empty folder")
    mistakes += _name_mistakes(name, about)
    if mistakes or source is None:
        raise ConfigError(mistakes)
    return Plan(
        root=root,
        format=format,
        source=replace(source, columns=COLUMNS),
        name=(about.name if about else "") or name or default_name(root),
        stream=stream,
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
