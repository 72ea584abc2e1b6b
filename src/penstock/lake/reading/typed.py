"""Typed columns of messages, by the registered schemas of their streams: for Spark and for archives.

Rules: the schemas are fixed when reading is planned, and tasks get them as text; a task asks no registry. The columns
are those of the pinned version of each pattern of subjects, the newest unless it was pinned: rows of other known
versions are decoded by their own and get these columns, and rows of a version that was registered later are decoded by
the newest known one, except Avro's, which cannot be. Types are those that Spark and tables hold (`storable`); enums are
strings. A name that a column of `columns` has in any case gets the prefix `data_`, as others do in `RowDecoder`.

Several streams are read together if their typed columns are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import ConfigError
from penstock.client.blocking.client import Client
from penstock.client.blocking.decoding import schemas_to_decode
from penstock.lake.reading.columns import known_column
from penstock.lake.reading.storable import storable, storable_type
from penstock.schemas.as_json import schemas_of_json, schemas_to_json
from penstock.schemas.decoding import Reason
from penstock.schemas.plans import EnumStyle, SchemaError
from penstock.schemas.registry import StreamSchemas
from penstock.schemas.report import Counted, DecodeReport
from penstock.schemas.row_decoder import DECODE_ERROR, NEEDED, PREFIX, RowDecoder

__all__ = ["DECODE_ERROR", "NEEDED", "Pins", "Typed", "TypedColumns", "newer_than", "registered", "typed_by"]

Pins = Mapping[str, Mapping[str, int]]
"""Numbers of versions, by stream and pattern of subjects."""


class Typed(NamedTuple):
    """Plain values, for tasks, from which the typed columns of a query or an archive are made.

    `schemas`: JSON of `penstock.schemas.as_json`. `pins`: (stream, pattern of subjects, number), sorted.
    """

    schemas: str
    pins: tuple[tuple[str, str, int], ...]
    subjects: tuple[str, ...] = ()

    def numbers(self) -> dict[str, dict[str, int]]:
        """Return the pinned versions."""
        found: dict[str, dict[str, int]] = {}
        for stream, subject, number in self.pins:
            found.setdefault(stream, {})[subject] = number
        return found


def typed_by(schemas: Sequence[StreamSchemas], subjects: Sequence[str] = (), pins: Pins | None = None) -> Typed:
    """Return typed columns by these schemas. `pins`: versions other than the newest.

    Raise ConfigError if a stream has no schemas, a pinned version does not exist, or the streams differ.
    """
    mistakes = []
    numbers = []
    for one in schemas:
        there = one.of_subjects(subjects or None)
        if not there.versions:
            of = f" for {', '.join(subjects)}" if subjects else ""
            mistakes.append(f"decode: stream {one.stream} has no schemas{of}; `penstock schema register` adds one")
        wanted = dict((pins or {}).get(one.stream, {}))
        known = {(each.typed.subject, each.number) for each in there.versions}
        newest = {subject: each.number for subject, each in there.newest().items()}
        for subject, number in wanted.items():
            if subject in newest and (subject, number) not in known:
                mistakes.append(f"schemaVersions: stream {one.stream} has no version {number} for {subject}")
        numbers += [(one.stream, subject, wanted.get(subject, number)) for subject, number in newest.items()]
    if mistakes:
        raise ConfigError(mistakes)
    made = Typed(schemas_to_json(schemas), tuple(sorted(numbers)), tuple(subjects))
    TypedColumns(made)
    return made


def registered(client: Client, streams: Iterable[str], timeout_s: float) -> list[StreamSchemas]:
    """Return the schemas by which the values of the streams are decoded now."""
    return [schemas_to_decode(client, name, timeout_s) for name in sorted(streams)]


def newer_than(typed: Typed, now: Iterable[StreamSchemas]) -> dict[str, dict[str, int]]:
    """Return the newest versions that are newer than the pinned ones, by stream and pattern of subjects."""
    pinned = typed.numbers()
    found: dict[str, dict[str, int]] = {}
    for one in now:
        for subject, each in one.newest().items():
            if each.number > pinned.get(one.stream, {}).get(subject, each.number):
                found.setdefault(one.stream, {})[subject] = each.number
    return found


class TypedColumns:
    """Builds typed columns. `schema`: theirs, the last of which is `decode_error`.

    Raise ConfigError if the streams have different columns, or a schema has mistakes.
    """

    def __init__(self, typed: Typed) -> None:
        subjects = list(typed.subjects) or None
        pinned = typed.numbers()
        self._decoders: dict[str, RowDecoder] = {}
        for schemas in schemas_of_json(typed.schemas):
            pins = pinned.get(schemas.stream, {})
            try:
                decoder = RowDecoder(
                    schemas, subjects=subjects, enums=EnumStyle.STRING, pins=pins, decodes_unknown=True
                )
            except SchemaError as error:
                raise ConfigError([f"decode: stream {schemas.stream}: {error}"]) from error
            self._decoders[schemas.stream] = decoder
        first, *others = self._decoders
        for other in others:
            if self._decoders[other].schema != self._decoders[first].schema:
                text = f"streams {first} and {other} have different typed columns; read each by itself"
                raise ConfigError([f"decode: {text}"])
        found = self._decoders[first].schema
        names = _names([name for name in found.names if name != DECODE_ERROR])
        self.schema = pa.schema(
            [
                *[pa.field(name, storable_type(kind)) for name, kind in zip(names, found.types, strict=False)],
                pa.field(DECODE_ERROR, pa.string()),
            ]
        )

    def names_in(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that are typed columns."""
        return [name for name in names if name in self.schema.names]

    def decode(self, stream: str, batch: pa.RecordBatch, report: DecodeReport) -> pa.RecordBatch:
        """Return the typed columns of rows of the log, and add to the report.

        Values of a stream that these schemas do not have are refused.
        """
        decoder = self._decoders.get(stream)
        if decoder is None:
            return self._refused(batch, report)
        found = decoder.decode(batch)
        report.add(found.report)
        arrays = [storable(one) for one in found.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _refused(self, batch: pa.RecordBatch, report: DecodeReport) -> pa.RecordBatch:
        present = batch.column("value").is_valid()
        count = pc.sum(present).as_py() or 0
        if count:
            first = pc.index(present, True).as_py()
            refused = {Reason.SUBJECT: Counted(count, f"offset {batch.column('offset')[first]}")}
            report.add(DecodeReport(batch.num_rows, 0, refused))
        error = pc.if_else(present, pa.scalar(Reason.SUBJECT.text), pa.scalar(None, pa.string()))
        nulls = [pa.nulls(batch.num_rows, kind) for kind in self.schema.types[:-1]]
        return pa.RecordBatch.from_arrays([*nulls, error], schema=self.schema)

    def together(self, rows: pa.RecordBatch, made: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
        """Return the columns of these names of both."""
        sources = [made if name in made.schema.names else rows for name in names]
        fields = [one.schema.field(name) for one, name in zip(sources, names, strict=True)]
        arrays = [one.column(name) for one, name in zip(sources, names, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _names(names: Sequence[str]) -> list[str]:
    """Return the names of the columns, no two of which differ in case only, and none of which another column has."""
    given = {DECODE_ERROR}
    made = []
    others = {name.lower() for name in names}
    for name in names:
        column = name
        while known_column(column) or column.lower() in given or (column != name and column.lower() in others):
            column = PREFIX + column
        given.add(column.lower())
        made.append(column)
    return made
