"""Writes the batches of a streaming query to a Delta table exactly once; the columns are those of the query.

Rules: tasks write files; the driver commits them together with (query id, batch id). A batch that runs again finds its
id in the table and does nothing. No file is deleted: a file that no commit names is not part of the table. Files with
other columns or types are not committed, because every reader of the table would fail on them.
"""

from __future__ import annotations

import functools
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.lake.reading.columns import in_utc
from penstock.lake.tables.folder import OvertakenError
from penstock.spark.runtime.sessions import without_pandas_warning
from penstock.spark.writing.query_ids import QUERY_ID, query_id_of
from penstock.vfs.real import sync_folder_if_possible

if TYPE_CHECKING:
    from deltalake import DeltaTable, Field
    from pyspark.sql import DataFrame

_WRITTEN_DDL = "path STRING, size BIGINT, rows BIGINT"


class DeltaSink:
    """Function for `foreachBatch`, called in the driver."""

    def __init__(self, root: Path, *, is_whole: bool = False) -> None:
        self._root = root
        self._mode = "overwrite" if is_whole else "append"  # a batch is the whole result, or its new rows

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        """Write a batch, unless the table holds it already. Raise ConfigError if the table has other columns or types.

        Raise OperationalError if Spark does not set the query id, OvertakenError if another writer has changed the
        table meanwhile.
        """
        from deltalake import CommitProperties, Transaction
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction

        query_id = query_id_of(rows.sparkSession.sparkContext.getLocalProperty(QUERY_ID))
        found = self._open(rows)
        done = found.transaction_version(query_id)
        if done is not None and done >= batch_id:
            return
        with without_pandas_warning():
            written = rows.mapInArrow(functools.partial(write, str(self._root)), _WRITTEN_DDL).collect()
        now_ms = int(time.time() * 1_000)
        files: list[Any] = [
            AddAction(one.path, one.size, {}, now_ms, True, json.dumps({"numRecords": one.rows})) for one in written
        ]
        commit = CommitProperties(app_transactions=[Transaction(query_id, batch_id)])
        try:
            found.create_write_transaction(files, self._mode, found.schema(), commit_properties=commit)
        except CommitFailedError as error:
            text = f"{self._root}: another writer has changed the table at the same time, so nothing was committed"
            raise OvertakenError(f"{text}; start the query again: {error}") from error

    def _open(self, rows: DataFrame) -> DeltaTable:
        from deltalake import DeltaTable, Schema
        from pyspark.sql.pandas.types import to_arrow_schema

        schema = to_arrow_schema(rows.schema, timezone="UTC")
        DeltaTable.create(str(self._root), schema, mode="ignore")
        found = DeltaTable(str(self._root))
        there, given = found.schema().fields, Schema.from_arrow(schema).fields
        if [one.name for one in there] != [one.name for one in given]:
            names = [", ".join(one.name for one in some) for some in (there, given)]
            text = f"its columns are {names[0]}; those of the result are {names[1]}"
            raise ConfigError([f"{self._root} holds another table: {text}"])
        if other := [pair for pair in zip(there, given, strict=True) if not _takes(*pair)]:
            text = "; ".join(f"{old.name} is {_type_of(old)}, that of the result {_type_of(new)}" for old, new in other)
            raise ConfigError([f"{self._root} holds another table: its column {text}"])
        return found


def _takes(there: Field, given: Field) -> bool:
    return there.type == given.type and (there.nullable or not given.nullable)


def _type_of(field: Field) -> str:
    kind = getattr(field.type, "type", "")  # the name, for a primitive type
    if kind in ("", "array", "map", "struct"):
        kind = field.type.to_json()
    return kind if field.nullable else f"{kind} not null"


def write(root: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In a task: write the rows as one file, synced to disk; yield it, or nothing if there are no rows."""
    path = f"part-{uuid.uuid4().hex}.zstd.parquet"
    waiting: list[pa.RecordBatch] = []
    writer = None
    rows = size = 0
    with (Path(root) / path).open("xb") as file:
        for batch in map(in_utc, batches):
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            writer = writer or parquet.ParquetWriter(file, batch.schema, compression="zstd", compression_level=1)
            if size >= limits.SINK_ROW_GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(waiting))
                waiting, size = [], 0
        if writer is not None:
            if waiting:
                writer.write_table(pa.Table.from_batches(waiting))
            writer.close()
        file.flush()
        os.fsync(file.fileno())
        length = file.tell()
    if not rows:
        (Path(root) / path).unlink()
        return
    sync_folder_if_possible(Path(root))
    yield pa.RecordBatch.from_pydict({"path": [path], "size": [length], "rows": [rows]})
