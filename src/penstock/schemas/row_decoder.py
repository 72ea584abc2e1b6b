"""Decodes rows of a stream to typed columns: by its subject and headers each row gets its schema.

Rules: every row is kept, in order. A row that does not decode is null in all columns and has a reason in the last one,
`decode_error`; a null value, which is a tombstone, is null there, too. Rows of one pattern, version and framing are
decoded together; no Python object is made for a row.

| which                | from                                                                                       |
|----------------------|--------------------------------------------------------------------------------------------|
| type                 | the pattern that the subject matches; of a dead letter else its original subject           |
| version              | of Avro the fingerprint of the single-object encoding; else the header `Penstock-Schema`;  |
|                      | else the newest, of Avro only if all have the same bytes                                   |
| framing              | `BARE` with the header `Frugal-Operation` (native framing), else the version's             |
| protocol (of Thrift) | the header `Content-Type` if it is one of Thrift's, else the version's                     |

| types of the stream  | columns                                                                                    |
|----------------------|--------------------------------------------------------------------------------------------|
| one                  | its fields                                                                                 |
| several              | a struct for each type, named by it; null where the row has another                        |

Patterns with one type by name share columns if the fields of one include the other's. Rows of an older version have the
newest one's columns (`projection`; of Avro `resolution`). Names of the log's columns stay theirs: another column of
such a name gets the prefix `data_`.

A reader that was planned earlier keeps its columns: `pins` names the versions that count as the newest, and rows of
versions that are newer still get the columns of these. A version that is not known was registered later; what it wrote
is decoded by the newest if `decodes_unknown` is set, since versions are compatible. Avro's values are not: they cannot
be read without their writer's schema.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.typed_headers import (
    CONTENT_TYPE,
    DEAD_PREFIX,
    DEAD_SUBJECT,
    DEAD_TOO_LONG,
    DEAD_UNFIT,
    OPERATION,
    SCHEMA,
    media_type,
    thrift_media_type,
)
from penstock.hot.header_codes import HeaderCodes
from penstock.idl.model import Reference
from penstock.schemas.avro import avro_layout
from penstock.schemas.avro_fingerprint import MARK_BYTES, SINGLE_OBJECT, single_object_mark
from penstock.schemas.decoding import Decoder, Reason, ValueFraming
from penstock.schemas.explaining import explained
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.pattern_index import PatternIndex
from penstock.schemas.plans import EnumStyle, Plan, SchemaError
from penstock.schemas.projection import either, projected
from penstock.schemas.registry import SchemaVersion, StreamSchemas
from penstock.schemas.report import Counted, DecodeReport, places
from penstock.schemas.resolution import Resolution
from penstock.schemas.thrift import ThriftProtocol

DECODE_ERROR = "decode_error"
NEEDED = ("subject", "value", "headers")
"""The columns of a log that a batch must have."""
PREFIX = "data_"

_RESERVED = ("offset", "timestamp", "subject", "key", "value", "headers", "partition", DECODE_ERROR)
_ERROR_TYPE = pa.dictionary(pa.int8(), pa.string())
_REASONS = pa.array([reason.text for reason in Reason], pa.string())
_NUMBERS = pa.array([int(reason) for reason in Reason], pa.uint8())
_PROTOCOLS = {thrift_media_type(each): each for each in ThriftProtocol}
_INDEXED_PER_PATTERN_MAX = 16  # different subjects of a batch; more are matched by regular expressions
_NO_TYPE = -1  # of rows that are refused by their headers
_VALUE_END = 1 << 30  # beyond the bytes of any value
_CODES_END = 1 << 31  # codes have 4 bytes


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """`columns`: those of `RowDecoder.schema`, chunked if a table was decoded."""

    columns: list[pa.Array | pa.ChunkedArray]
    report: DecodeReport


@dataclass(slots=True)
class _Type:
    """A type with columns of its own, those of the newest version. `kind`: a struct."""

    name: str
    kind: pa.DataType


@dataclass(slots=True)
class _Pattern:
    """A pattern of subjects. `regex` is for Arrow's matching (RE2)."""

    subject: str
    newest: SchemaVersion
    type: int
    versions: dict[str, SchemaVersion] = field(default_factory=dict)  # by hash; the last of equal ones
    must_be_named: bool = False  # a message that does not name its version may be any of them
    marks: dict[bytes, SchemaVersion] = field(default_factory=dict)  # of Avro's single-object encoding
    refusals: Mapping[Reason, _Route] = field(default_factory=lambda: _REFUSALS)

    def note_differences(self) -> None:
        """Note the marks of Avro's versions, and if they differ in their bytes, so that a message must name its own."""
        versions = [each for each in self.versions.values() if each.schema.kind is SchemaKind.AVRO]
        for each in versions:
            with contextlib.suppress(SchemaError):  # of a version that this Penstock reads no more
                self.marks[single_object_mark(each.schema.text)] = each
        if self.newest.schema.kind is SchemaKind.AVRO:
            self.must_be_named = len({_avro_layout(each.schema) for each in versions}) > 1
        if self.marks:
            self.refusals = {reason: _Route(reason=reason, owner=self) for reason in Reason}

    @property
    def regex(self) -> str:
        tokens = [_TOKENS.get(token, re.escape(token)) for token in self.subject.split(".")]
        return r"(?s)\A" + r"\.".join(tokens) + r"\z"


_DEAD = rf"\A{re.escape(DEAD_PREFIX)}[^.]+\."
_TOKENS = {"*": "[^.]+", ">": ".+"}


@dataclass(frozen=True, slots=True)
class _Route:
    """A decoder, or a reason, for rows of one pattern and equal headers.

    `owner`: the pattern if its values may be in Avro's single-object encoding. `skips`: bytes in front of the value.
    """

    decoder: Decoder | None = None
    reason: int = 0
    version: SchemaVersion | None = None
    type: int = _NO_TYPE
    resolution: Resolution | None = None  # of Avro: to the newest version
    owner: _Pattern | None = None
    skips: int = 0

    def values(self, rows: pa.Array | None, values: pa.Array) -> pa.Array:
        """Return the encoded values of rows, without what stands before them."""
        own = values if rows is None else values.take(rows)
        # Without an end, Arrow 26 fails if nothing is left of any value: "Negative buffer resize".
        return pc.binary_slice(own.cast(pa.binary()), self.skips, _VALUE_END) if self.skips else own


_REFUSALS: Mapping[Reason, _Route] = {reason: _Route(reason=reason) for reason in Reason}


@dataclass(slots=True)
class _Part:
    """Decoded rows of one route. `rows`: their places in the batch; None: all. `columns`: None for a refused route."""

    rows: pa.Array | None
    count: int
    columns: pa.StructArray | None
    reasons: pa.Array
    type: int


class RowDecoder:
    """Decodes batches of a stream's rows. `schema` has the added columns, of which the last is `decode_error`.

    `subjects`: those that are read, or patterns; None: all. SchemaError: the stream has no schemas for them, or one of
    them has mistakes.
    """

    def __init__(
        self,
        schemas: StreamSchemas,
        *,
        subjects: Sequence[str] | None = None,
        enums: EnumStyle = EnumStyle.DICTIONARY,
        pins: Mapping[str, int] | None = None,
        decodes_unknown: bool = False,
    ) -> None:
        schemas = schemas.of_subjects(subjects)
        if not schemas.versions:
            of = "" if subjects is None else f" for {', '.join(subjects)}"
            raise SchemaError(f"the stream {schemas.stream!r} has no schemas{of}; `penstock schema register` adds some")
        self._enums = enums
        self._types: list[_Type] = []
        self._decodes_unknown = decodes_unknown
        self._patterns = [self._pattern(version) for version in schemas.newest(pins).values()]
        for version in schemas.versions:
            owner = next(each for each in self._patterns if each.subject == version.typed.subject)
            owner.versions[version.hash] = version
        for each in self._patterns:
            each.note_differences()
        self._index = PatternIndex([each.subject for each in self._patterns])
        self._headers = _Headers(schemas.versions)
        self._plans: dict[tuple[str, int], Plan] = {}
        self._routes: dict[tuple[str, int, ValueFraming, ThriftProtocol, int], _Route] = {}
        self.schema = pa.schema([*self._fields(), pa.field(DECODE_ERROR, _ERROR_TYPE)])

    def decode(self, batch: pa.RecordBatch | pa.Table, *, rows_before: int = 0) -> DecodedRows:
        """Decode rows with the columns `subject`, `value` and `headers`, which may have others.

        `rows_before`: for positions in the report of rows without the column `offset`. ValueError: a column is missing.
        """
        if isinstance(batch, pa.RecordBatch):
            return self._decoded(batch, rows_before)
        report, parts = DecodeReport(), []
        for each in batch.to_batches():
            found = self._decoded(each, rows_before + report.rows)
            report.add(found.report)
            parts.append(found.columns)
        columns = zip(*parts, strict=True) if parts else [[] for _ in self.schema]
        chunked = [pa.chunked_array(list(each), kind) for each, kind in zip(columns, self.schema.types, strict=True)]
        return DecodedRows(chunked, report)

    def reasons(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the number of each row's `Reason`, 0 for one that decodes or is null: uint8. No column is made.

        A row of an older version that decodes has none, also if the newest version's columns do not take it.
        """
        subjects, values, blocks = (_plain(_column(batch, name)) for name in NEEDED)
        parts = [_refused_part(*each, values) for each in self._split(subjects, blocks, values)]
        return _joined([part.reasons for part in parts], _order(parts), pa.uint8())

    def explained(self, batch: pa.RecordBatch, row: int) -> str:
        """Return what is wrong with a row's value, beside the reason; "" if it is not known, or the row decodes."""
        subjects, values, blocks = (_plain(_column(batch, name).slice(row, 1)) for name in NEEDED)
        ((route, _),) = self._split(subjects, blocks, values)
        value = route.values(None, values).cast(pa.binary())[0].as_py()
        return "" if route.decoder is None or value is None else explained(route.decoder, value)

    def _decoded(self, batch: pa.RecordBatch, rows_before: int) -> DecodedRows:
        subjects, values, blocks = (_plain(_column(batch, name)) for name in NEEDED)
        report = DecodeReport(rows=batch.num_rows)
        parts = [self._part(*each, values, report) for each in self._split(subjects, blocks, values)]
        parts.sort(key=lambda part: part.type)
        order = _order(parts)
        reasons = _joined([part.reasons for part in parts], order, pa.uint8())
        if len(reasons) and pc.max(reasons).as_py():
            self._count(reasons, report, batch, rows_before)
        columns: list[pa.Array | pa.ChunkedArray] = []
        by_type = {place: list(own) for place, own in itertools.groupby(parts, key=lambda part: part.type)}
        end = sum(part.count for part in by_type.get(_NO_TYPE, ()))
        for place, each in enumerate(self._types):
            own = by_type.get(place, ())
            begin, end = end, end + sum(part.count for part in own)
            made = [part.columns for part in own if part.columns is not None]
            whole = _joined(made, _own(order, begin, end), each.kind) if made else pa.nulls(len(reasons), each.kind)
            columns += whole.flatten() if len(self._types) == 1 else [whole]
        errors = pa.DictionaryArray.from_arrays(pc.index_in(reasons, _NUMBERS).cast(pa.int8()), _REASONS)
        return DecodedRows([*columns, errors], report)

    def _count(self, reasons: pa.Array, report: DecodeReport, batch: pa.RecordBatch, rows_before: int) -> None:
        """Note the refused rows in the report."""
        place = places(batch, rows_before)
        for each in pc.value_counts(reasons).to_pylist():
            if each["values"]:
                first = pc.index(reasons, pa.scalar(each["values"], pa.uint8())).as_py()
                why = self.explained(batch, first)
                report.refused[Reason(each["values"])] = Counted(each["counts"], place(first), why)

    def _split(self, subjects: pa.Array, blocks: pa.Array, values: pa.Array) -> list[tuple[_Route, pa.Array | None]]:
        """Return the routes of the rows, each with the places of its rows; None: all."""
        if not len(subjects):
            return []
        split = self._split_by_headers(subjects, blocks)
        if any(route.owner is not None for route, _ in split):
            values = values.cast(pa.binary())
            if pc.any(pc.starts_with(values, SINGLE_OBJECT)).as_py():
                return [part for route, rows in split for part in self._split_by_marks(route, rows, values)]
        return split

    def _split_by_marks(
        self, route: _Route, rows: pa.Array | None, values: pa.Array
    ) -> list[tuple[_Route, pa.Array | None]]:
        """Return the routes of a route's rows: a version's mark counts before what headers say."""
        if route.owner is None:
            return [(route, rows)]
        begins = pc.binary_slice(values if rows is None else values.take(rows), 0, MARK_BYTES)
        known = pa.array(list(route.owner.marks), pa.binary())
        places = pc.fill_null(pc.index_in(begins, known), len(known))
        split = []
        for place in sorted(pc.unique(places).to_pylist()):
            own = pc.indices_nonzero(pc.equal(places, place))
            if place < len(known):
                version = route.owner.marks[known[place].as_py()]
                one = self._version_route(route.owner, version, ValueFraming.BARE, version.typed.protocol, MARK_BYTES)
            else:
                one = route
            split.append((one, own if rows is None else rows.take(own)))
        return split

    def _split_by_headers(self, subjects: pa.Array, blocks: pa.Array) -> list[tuple[_Route, pa.Array | None]]:
        patterns, codes = self._patterns_of(subjects, blocks), self._headers.codes(blocks)
        end = self._headers.end
        if isinstance(patterns, int) and codes is None:
            return [(self._route(patterns, 0), None)]
        if isinstance(patterns, int):
            numbers = pc.add(codes, patterns * end)
        else:
            numbers = pc.multiply(patterns, end)
            numbers = numbers if codes is None else pc.add(numbers, codes)
        encoded = numbers.dictionary_encode()
        routes = [self._route(*divmod(number, end)) for number in encoded.dictionary.to_pylist()]
        different = list({id(route): route for route in routes}.values())
        if len(different) == 1:
            return [(different[0], None)]
        places = {id(route): place for place, route in enumerate(different)}
        of_rows = pa.array([places[id(route)] for route in routes], pa.int32()).take(encoded.indices)
        rows = pc.array_sort_indices(of_rows)  # stable
        counts = {each["values"]: each["counts"] for each in pc.value_counts(of_rows).to_pylist()}
        ends = list(itertools.accumulate(counts[place] for place in range(len(different))))
        return [
            (route, rows.slice(begin, end - begin))
            for route, begin, end in zip(different, [0, *ends], ends, strict=False)
        ]

    def _patterns_of(self, subjects: pa.Array, blocks: pa.Array) -> pa.Array | int:
        """Return the places of the patterns that the subjects match, int64; one number if all have the same.

        The number of the patterns is for a subject that none matches.
        """
        subjects = pc.fill_null(subjects, "") if subjects.null_count else subjects
        first = subjects[0].as_py()
        for place, pattern in enumerate(self._patterns):
            if pattern.subject == first and pc.all(pc.equal(subjects, first)).as_py():
                return place
        encoded = subjects.dictionary_encode()
        found = self._matched(encoded.dictionary)
        if found.null_count and pc.any(pc.starts_with(encoded.dictionary, DEAD_PREFIX)).as_py():
            published = _published(subjects, blocks).dictionary_encode()
            by_published = self._matched(published.dictionary).take(published.indices)
            found = pc.coalesce(found.take(encoded.indices), by_published)
            return pc.fill_null(found, len(self._patterns))
        found = pc.fill_null(found, len(self._patterns))
        bounds = pc.min_max(found).as_py()
        if bounds["min"] == bounds["max"]:
            return int(bounds["min"])
        return found.take(encoded.indices)

    def _matched(self, subjects: pa.Array) -> pa.Array:
        """Return the places of the patterns that the subjects match, int64; null for a subject that none matches."""
        if len(subjects) <= _INDEXED_PER_PATTERN_MAX * len(self._patterns):
            return pa.array(self._index.places(subjects.cast(pa.binary()).to_pylist()), pa.int64())
        found = pa.nulls(len(subjects), pa.int64())
        for place, pattern in enumerate(self._patterns):
            if not found.null_count:
                break
            is_of = pc.match_substring_regex(subjects, pattern.regex)
            found = pc.if_else(is_of, pa.scalar(place, pa.int64()), found)
        return found

    def _part(self, route: _Route, rows: pa.Array | None, values: pa.Array, report: DecodeReport) -> _Part:
        """Decode the rows of a route."""
        values = route.values(rows, values)
        count, present = len(values), len(values) - values.null_count
        if route.decoder is None or route.version is None:
            reason = pa.scalar(route.reason, pa.uint8())
            return _Part(rows, count, None, pc.if_else(values.is_valid(), reason, pa.scalar(0, pa.uint8())), _NO_TYPE)
        found = route.decoder.decode(values)
        reasons = found.refused.codes.combine_chunks() if count else pa.array([], pa.uint8())
        decoded = present - found.refused.count
        made, changed = (found.columns, None) if route.resolution is None else route.resolution.columns(found.columns)
        columns, lost = projected(made, self._types[route.type].kind)
        lost = either([changed, lost])
        if lost is not None:
            reasons = pc.if_else(lost, pa.scalar(int(Reason.CHANGED), pa.uint8()), reasons)
            decoded -= pc.sum(lost).as_py()
        report.decoded += decoded
        version = route.version.typed.subject, route.version.number
        if decoded:
            report.versions[version] = report.versions.get(version, 0) + decoded
        return _Part(rows, count, columns, reasons, route.type)

    def _route(self, pattern: int, code: int) -> _Route:
        """Return what rows of a pattern and a code of headers get: one object for all codes that decide the same.

        Publishers choose the headers, and so the codes: what is kept is not by code, but by what a version can have.
        """
        if pattern == len(self._patterns):
            return _REFUSALS[Reason.SUBJECT]
        owner, said = self._patterns[pattern], self._headers.said(code)
        if said.hash is None and owner.must_be_named:
            return owner.refusals[Reason.UNVERSIONED]
        version = owner.newest if said.hash is None else owner.versions.get(said.hash)
        is_unknown = said.hash == ""  # else it is the version of another pattern
        if version is None and self._decodes_unknown and is_unknown and owner.newest.schema.kind is not SchemaKind.AVRO:
            version = owner.newest
        if version is None:
            return owner.refusals[Reason.VERSION]
        typed = version.typed
        framing, protocol = typed.framing, typed.protocol
        if version.schema.kind is SchemaKind.FRUGAL:
            protocol = said.protocol or protocol
            if said.operation is not None:
                if typed.message and said.operation != typed.message:
                    return _REFUSALS[Reason.NAME]
                if said.is_other_type:
                    return _REFUSALS[Reason.CONTENT_TYPE]
                framing = ValueFraming.BARE
        return self._version_route(owner, version, framing, protocol)

    def _version_route(
        self, owner: _Pattern, version: SchemaVersion, framing: ValueFraming, protocol: ThriftProtocol, skips: int = 0
    ) -> _Route:
        """Return the route of a version's rows that are framed so."""
        key = version.typed.subject, version.number, framing, protocol, skips
        if key not in self._routes:
            self._routes[key] = self._new_route(owner, version, framing, protocol, skips)
        return self._routes[key]

    def _new_route(
        self, owner: _Pattern, version: SchemaVersion, framing: ValueFraming, protocol: ThriftProtocol, skips: int
    ) -> _Route:
        """Return a decoder of a version."""
        try:
            plan = self._plan(version)
            decoder = version.schema.decoder_of(plan, framing, protocol, version.typed.message)
        except SchemaError:  # of a version that this Penstock reads no more, or that was never to be registered
            return owner.refusals[Reason.FRAME]
        resolution = None
        if version is not owner.newest and SchemaKind.AVRO is version.schema.kind is owner.newest.schema.kind:
            resolution = Resolution(plan, self._plan(owner.newest))
        return _Route(decoder, 0, version, owner.type, resolution, owner if owner.marks else None, skips)

    def _plan(self, version: SchemaVersion) -> Plan:
        """Return the plan of a version, which may be large: one for all framings and protocols."""
        key = version.typed.subject, version.number
        if key not in self._plans:
            self._plans[key] = version.schema.plan(self._enums)
        return self._plans[key]

    def _pattern(self, newest: SchemaVersion) -> _Pattern:
        """Return a pattern, and give it columns: those of its type if that has some that include its own."""
        kind = pa.struct(list(newest.schema.arrow_schema(self._enums)))
        name = _type_name(newest)
        for place, each in enumerate(self._types):
            if each.name == name and (_includes(each.kind, kind) or _includes(kind, each.kind)):
                if _includes(kind, each.kind):
                    each.kind = kind
                return _Pattern(newest.typed.subject, newest, place)
        self._types.append(_Type(name, kind))
        return _Pattern(newest.typed.subject, newest, len(self._types) - 1)

    def _fields(self) -> list[pa.Field]:
        """Return the columns of the types."""
        if len(self._types) == 1:
            inner = list(self._types[0].kind)
            names = _column_names([each.name for each in inner])
            return [pa.field(name, each.type) for name, each in zip(names, inner, strict=True)]
        names = _column_names(_different([each.name for each in self._types]))
        return [pa.field(name, each.kind) for name, each in zip(names, self._types, strict=True)]


@dataclass(frozen=True, slots=True)
class _Said:
    """The content of a row's headers. `operation`, `hash`: "" for one that no schema or version has.

    `is_other_type`: no type of Thrift's.
    """

    hash: str | None = None
    operation: str | None = None
    protocol: ThriftProtocol | None = None
    is_other_type: bool = False


class _Headers:
    """Codes of what headers say; all are below `end`."""

    def __init__(self, versions: Sequence[SchemaVersion]) -> None:
        self._hashes = list(dict.fromkeys(each.hash for each in versions))
        self._operations = list(dict.fromkeys(each.typed.message for each in versions if each.typed.message))
        self._steps = (1, len(self._hashes) + 2, (len(self._hashes) + 2) * (len(self._operations) + 2))
        self.end = self._steps[2] * (len(_PROTOCOLS) + 2)
        if self.end >= _CODES_END:
            raise SchemaError(f"{len(versions):,} versions of schemas are too many for one stream")
        known = (self._hashes, self._operations, list(_PROTOCOLS))
        self._codes = HeaderCodes(
            [name.encode() for name in (SCHEMA, OPERATION, CONTENT_TYPE)],
            [
                {text.encode(): step * place for place, text in enumerate(texts, 1)}
                for step, texts in zip(self._steps, known, strict=True)
            ],
            self._other,
        )

    def codes(self, blocks: pa.Array) -> pa.Array | None:
        """Return the codes of header blocks, int64; None: all are 0."""
        if blocks.null_count == len(blocks):
            return None
        validity, offsets, data = blocks.buffers()
        text = memoryview(b"") if data is None else memoryview(data)
        valid = None if validity is None or not blocks.null_count else memoryview(validity)
        codes = self._codes.read(valid, memoryview(offsets), text, blocks.offset, len(blocks))
        if codes.count(0) == len(codes):
            return None
        return pa.Array.from_buffers(pa.int32(), len(blocks), [None, pa.py_buffer(codes)], 0).cast(pa.int64())

    def said(self, code: int) -> _Said:
        """Return what headers of a code say."""
        code, of_hash = divmod(code, self._steps[1])
        of_type, of_operation = divmod(code, len(self._operations) + 2)
        types = list(_PROTOCOLS.values())
        return _Said(
            None if not of_hash else _nth(self._hashes, of_hash),
            None if not of_operation else _nth(self._operations, of_operation),
            types[of_type - 1] if 0 < of_type <= len(types) else None,
            of_type > len(types),
        )

    def _other(self, place: int, value: bytes) -> int:
        """Return the code of a value that is not spelled as the known ones are."""
        step, text = self._steps[place], value.decode("latin-1")
        if place == 0:
            return step * _place(self._hashes, text.lower())
        if place == 1:
            return step * (len(self._operations) + 1)
        return step * _place(list(_PROTOCOLS), media_type(text))


def _published(subjects: pa.Array, blocks: pa.Array) -> pa.Array:
    """Return the subjects on which messages were published that may be dead letters, as bytes."""
    subjects = subjects.cast(pa.binary())
    found = pc.replace_substring_regex(subjects, _DEAD, "")
    is_elsewhere = pc.is_in(found, pa.array([DEAD_TOO_LONG, DEAD_UNFIT], pa.binary()))
    is_elsewhere = pc.and_(is_elsewhere, pc.starts_with(subjects, DEAD_PREFIX))
    if not pc.any(is_elsewhere).as_py():
        return found
    said = pc.extract_regex(blocks.cast(pa.binary()), rf"\r\n{DEAD_SUBJECT}: *(?P<said>[^\r\n]*)\r\n").field(0)
    return pc.if_else(pc.and_(is_elsewhere, said.is_valid()), said, found)


def _refused_part(route: _Route, rows: pa.Array | None, values: pa.Array) -> _Part:
    """Return the reasons of a route's rows, without their columns."""
    values = route.values(rows, values)
    if route.decoder is None:
        reasons = pc.if_else(values.is_valid(), pa.scalar(route.reason, pa.uint8()), pa.scalar(0, pa.uint8()))
    else:
        reasons = route.decoder.reasons(values)
    return _Part(rows, len(values), None, reasons, _NO_TYPE)


def _avro_layout(schema: Schema) -> object:
    try:
        return avro_layout(schema.text)
    except SchemaError as error:  # one that this version of Penstock does not read any more
        return str(error)


def _place(known: list[str], text: str) -> int:
    """Return the place of a known text from 1 up; the one after all: it is not known."""
    return known.index(text) + 1 if text in known else len(known) + 1


def _nth(known: list[str], place: int) -> str:
    return known[place - 1] if place <= len(known) else ""


def _column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name not in batch.schema.names:
        raise ValueError(f"the columns {batch.schema.names} have no {name!r}; decoding takes {', '.join(NEEDED)}")
    return batch.column(name)


def _plain(column: pa.Array) -> pa.Array:
    """Return a column of bytes or text with offsets of 4 bytes, without a dictionary."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return column
    if pa.types.is_dictionary(kind):
        return _plain(column.dictionary_decode())
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return column.cast(pa.string())
    return column.cast(pa.binary())


def _order(parts: list[_Part]) -> pa.Array | None:
    """Return by row of the batch its place in all parts one after another; None: the only part is the batch."""
    rows = [part.rows for part in parts if part.rows is not None]
    return pc.sort_indices(pa.concat_arrays(rows)) if rows else None


def _own(order: pa.Array | None, begin: int, end: int) -> pa.Array | None:
    """Return by row its place in the parts from `begin` to `end` alone, null for a row of others."""
    if order is None or end - begin == len(order):
        return order
    is_own = pc.and_(pc.greater_equal(order, begin), pc.less(order, end))
    return pc.if_else(is_own, pc.subtract(order, begin), None)


def _joined(made: list[pa.Array], order: pa.Array | None, kind: pa.DataType) -> pa.Array:
    """Return arrays of parts as one in an order of rows, null where that is null."""
    if not made:
        return pa.array([], kind)
    return made[0] if order is None else pa.concat_arrays(made).take(order)


def _includes(kind: pa.DataType, other: pa.DataType) -> bool:
    """True if a struct has all fields of another, with their types."""
    fields = {each.name: each.type for each in kind}
    return all(fields.get(each.name) == each.type for each in other)


def _type_name(version: SchemaVersion) -> str:
    """Return what a version's type is called: its own name, that of its message, or words of the subject."""
    words = "_".join(token for token in version.typed.subject.split(".") if token not in _TOKENS)
    own = _own_name(version.schema).replace("/", ".").rpartition(".")[2]
    return own or version.typed.message or words or "value"


def _own_name(schema: Schema) -> str:
    """Return the name that a type has in its schema, "" for one without."""
    if schema.kind is SchemaKind.ARROW:
        return ""
    if schema.kind is SchemaKind.PROTOBUF:
        return schema.type_name
    if schema.kind is SchemaKind.FRUGAL:
        _, type_ = schema.contract()
        return type_.name if isinstance(type_, Reference) else ""
    parsed: Any = json.loads(schema.text)
    name = parsed.get("name" if schema.kind is SchemaKind.AVRO else "title") if isinstance(parsed, Mapping) else ""
    return name if isinstance(name, str) else ""


def _different(names: list[str]) -> list[str]:
    """Return names of which no two differ only in case, since many programs would confuse them."""
    made, taken = [], {name.lower() for name in names}
    given = set[str]()
    for name in names:
        column, number = name, 2
        while column.lower() in given or (column != name and column.lower() in taken):
            column, number = f"{name}_{number}", number + 1
        given.add(column.lower())
        made.append(column)
    return made


def _column_names(names: list[str]) -> list[str]:
    """Return the columns' names, none of which is that of a column of the log."""
    taken, made = set(names), []
    for name in names:
        column = name
        while column.lower() in _RESERVED or (column != name and column in taken) or not column:
            column = PREFIX + column
        taken.add(column)
        made.append(column)
    return made
