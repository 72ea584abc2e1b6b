"""Collect a read into one table, with a partition column if the stream has several partitions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING

from penstock.client.checks import wanted_columns
from penstock.client.read.batches import partition_of
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION = "partition"
"""Name of the column with the partition number: an offset alone is unique only within a partition."""


async def as_table(
    info: StreamInfo, columns: Iterable[str] | None, read: Callable[[list[str] | None], AsyncIterator[pa.RecordBatch]]
) -> pa.Table:
    """Return the rows of `read` with these columns (None: all). ValueError: no such column."""
    import pyarrow as pa

    from penstock.batch.schema import arrow_schema

    names = None if columns is None else [columns] if isinstance(columns, str) else list(columns)
    has_partition = len(info.partitions) > 1 if names is None else PARTITION in names
    wanted = wanted_columns(names if not names else [name for name in names if name != PARTITION] or ["offset"])
    schema = arrow_schema()
    if wanted is not None:
        schema = pa.schema([schema.field(name) for name in wanted])
    if has_partition:
        schema = schema.append(pa.field(PARTITION, pa.int32(), nullable=False))
    found = []
    async for batch in read(wanted):
        if has_partition:
            number = pa.repeat(pa.scalar(partition_of(batch) or 0, pa.int32()), batch.num_rows)
            batch = pa.RecordBatch.from_arrays([*batch.columns, number], schema=schema)
        found.append(batch)
    table = pa.Table.from_batches(found, schema=schema)
    return table if names is None else table.select(names)
