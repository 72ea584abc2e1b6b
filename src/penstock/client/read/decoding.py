"""Decoding of values to columns: which one a caller wants, and that by the schemas of the stream.

| `decode`                | columns in place of `value`                                                    |
|-------------------------|--------------------------------------------------------------------------------|
| None, False             | none: `value` stays                                                            |
| "json"                  | the fields of JSON values, of types inferred from them (`json_columns`)        |
| "schema", True          | those of the schemas that the stream has now, and `decode_error`; of dead      |
|                         | letters without any, of those that the stream has from which they come         |
| a `StreamSchemas`       | those of these schemas, and `decode_error`: the columns stay what they are     |
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

from penstock.base.typed_headers import DEAD_PREFIX, DEAD_SUFFIX
from penstock.client.checks import wanted_columns
from penstock.client.errors import NotAuthorized, StreamNotFound

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.client.schemas import Schemas
    from penstock.messages import StreamInfo
    from penstock.schemas.plans import EnumStyle
    from penstock.schemas.registry import StreamSchemas
    from penstock.schemas.report import DecodeReport

Decode = Literal["json", "schema"]
"""Words for a decoding."""

NEEDED = ("subject", "value", "headers")
"""The columns of the log that decoding by schemas takes."""

_VALUE = "value"


def decode_of(decode: object) -> Decode | StreamSchemas | None:
    """Return what a caller's `decode` means. ValueError: nothing."""
    if decode is None or decode is False:
        return None
    if decode is True or decode == "schema":
        return "schema"
    if decode == "json":
        return "json"
    from penstock.schemas.registry import StreamSchemas

    if isinstance(decode, StreamSchemas):
        return decode
    raise ValueError(f"decode is {decode!r}; give 'json', 'schema' (or True), or what Client.schemas returned")


SOURCE_UNKNOWN = (StreamNotFound, NotAuthorized)
"""Errors of a request for the schemas of the stream that dead letters come from: then there are none."""


def source_of_letters(info: StreamInfo) -> str | None:
    """Return the stream of dead letters by the name of theirs: `orders` of `orders-dead`; None: it is not named so."""
    if not info.name.endswith(DEAD_SUFFIX) or info.config.subject != f"{DEAD_PREFIX}{info.name}.>":
        return None
    return info.name.removesuffix(DEAD_SUFFIX)


def batches_decode_of(decode: object) -> Literal["schema"] | StreamSchemas | None:
    """Return what a caller's `decode` means for batches, one after another. ValueError: nothing, or "json"."""
    wanted = decode_of(decode)
    if wanted == "json":
        raise ValueError("batches are decoded by schemas only; to_table(decode='json') infers types from all values")
    return wanted


class TypedColumns:
    """Replaces the column `value` of batches by the columns of schemas; `report` counts what did not decode.

    `names`: the log's columns that are wanted, None: all. SchemaError: there is no schema for the subjects that are
    read (patterns, None: all), or one has mistakes. ValueError: `names` lacks `value`.
    """

    def __init__(
        self,
        schemas: StreamSchemas,
        names: Iterable[str] | None = None,
        *,
        subjects: Sequence[str] | None = None,
        enums: EnumStyle | None = None,
    ) -> None:
        from penstock.schemas.plans import EnumStyle
        from penstock.schemas.report import DecodeReport
        from penstock.schemas.row_decoder import RowDecoder

        self._names = None if names is None else [names] if isinstance(names, str) else list(names)
        if self._names is not None and _VALUE not in self._names:
            raise ValueError(f"columns are {self._names}; decode needs the column 'value'")
        self._decoder = RowDecoder(schemas, subjects=subjects, enums=enums or EnumStyle.DICTIONARY)
        wanted = None if self._names is None else dict.fromkeys([*self._names, *NEEDED])
        self.fetched = wanted_columns(wanted and [name for name in wanted if name != "partition"])
        self.report: DecodeReport = DecodeReport()

    @property
    def added(self) -> pa.Schema:
        """The columns in place of `value`; the last is `decode_error`."""
        return self._decoder.schema

    def schema(self, log_schema: pa.Schema) -> pa.Schema:
        """Return the schema of the decoded batches of a log read with the columns of `log_schema`."""
        import pyarrow as pa

        return pa.schema([*map(log_schema.field, self._kept(log_schema)), *self.added], log_schema.metadata)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with the typed columns after the others. ValueError: it lacks a column that is needed."""
        import pyarrow as pa

        found = self._decoder.decode(batch, rows_before=self.report.rows)
        self.report.add(found.report)
        kept = [batch.column(name) for name in self._kept(batch.schema)]
        return pa.RecordBatch.from_arrays([*kept, *found.columns], schema=self.schema(batch.schema))

    def table(self, table: pa.Table) -> pa.Table:
        """Return the table with the typed columns after the others; a dictionary is one for all chunks."""
        import pyarrow as pa

        made = pa.Table.from_batches(map(self.batch, table.to_batches()), self.schema(table.schema))
        return made.unify_dictionaries()

    def _kept(self, log_schema: pa.Schema) -> list[str]:
        names = (name for name in log_schema.names if name != _VALUE)
        return [name for name in names if self._names is None or name in self._names or name == "partition"]


async def schemas_to_decode(schemas: Schemas, info: StreamInfo, timeout_s: float) -> StreamSchemas:
    """Return the schemas of a stream, or for dead letters those of the stream that they come from."""
    found = await schemas.of(info, timeout_s)
    source = None if found.versions else source_of_letters(info)
    if source is not None:
        with contextlib.suppress(*SOURCE_UNKNOWN):
            return found.with_versions(await schemas.of(source, timeout_s))
    return found


async def typed_columns(
    schemas: Schemas,
    info: StreamInfo,
    columns: Iterable[str] | None,
    decode: object,
    timeout_s: float,
    *,
    subjects: Sequence[str] | None = None,
) -> TypedColumns | None:
    """Return the columns that take the place of `value` in batches; None: `decode` wants none.

    `subjects`: those that are read, None: all. ValueError: `decode` is "json"; what `TypedColumns` raises.
    """
    wanted = batches_decode_of(decode)
    found = await schemas_to_decode(schemas, info, timeout_s) if wanted == "schema" else wanted
    return None if found is None else TypedColumns(found, columns, subjects=subjects)
