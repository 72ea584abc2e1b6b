"""Assign the rows of a table to partitions as a publisher would, in one pass over Arrow's buffers.

| a row has                          | its partition                                                               |
|------------------------------------|-----------------------------------------------------------------------------|
| a number in the column `partition` | is that number                                                              |
| a subject, in a stream split by `token:N`, `range:N` | follows from the Nth token of its subject                |
| a key                              | follows from its key: by hash, or by the range that contains it             |
| no key, in a stream split by `key`, `range` | follows from its subject                                           |
| no key, in any other stream        | follows from its value, null as `b""`                                       |

So a row that is sent again with the same key and value gets the same partition from every client. By hash, a key's
partition is XXH64(key, seed 0) mod partitions, unless the stream gained partitions; see `penstock.hot.keymap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId
from penstock.base.partitioning import PUBLISHER
from penstock.base.subjects import is_wildcard
from penstock.batch.placing import by_content, placed
from penstock.client import columns
from penstock.hot.keymap import KeyMap, key_map_of
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    import pyarrow as pa


def partitions_of(data: Any, stream: int | StreamInfo) -> pa.Int32Array:
    """Return the partition of each row, from its columns `partition`, `key`, `value` and, if the stream needs it,
    `subject`.

    `data`: what `Client.append` takes; a list of dicts has no `partition`. `stream`: a `StreamInfo`, or the number of
    partitions for keys by hash. `key` and `value` are binary or text and may be missing; a missing subject is the
    stream's. ValueError: a number in `partition` that the stream does not have, or
    a missing subject if the subject decides and the stream's is a pattern. TypeError: a column of another type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(data, pa.RecordBatch | pa.Table):
        data = columns.as_arrow(data)
    if isinstance(stream, StreamInfo):
        key_map = key_map_of(stream.config, stream.counts)
    elif stream < 1:
        raise ValueError(f"{stream} partitions; a stream has at least one")
    else:
        key_map = KeyMap((stream,))
    found = _by_content(data, stream, key_map)
    if "partition" not in data.schema.names:
        return found
    wanted = _one(data.column("partition"))
    if not (pa.types.is_integer(wanted.type) or pa.types.is_null(wanted.type)):
        raise TypeError(f"the column 'partition' is {wanted.type}; it must hold whole numbers")
    if wanted.null_count < len(wanted):
        bounds = pc.min_max(wanted).as_py()
        if bounds["min"] < 0 or bounds["max"] >= key_map.partitions:
            text = f"the column 'partition' holds {bounds['min']} to {bounds['max']}"
            raise ValueError(f"{text}; the partitions are 0 to {key_map.partitions - 1}")
        found = pc.coalesce(wanted.cast(pa.int32()), found)
    return found


def split_rows(data: Any, info: StreamInfo) -> list[tuple[PartitionId, pa.Table]]:
    """Return the rows of each partition that has some, in their order, as `columns.to_table` returns them.

    A column `partition` is ignored. ValueError or TypeError if the rows cannot be appended.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    given, subject_of = columns.as_arrow(data), info.config.subject_of
    rows = columns.log_rows(given, stream_subject=subject_of(0), were_read=columns.were_read(data, given))
    if not rows.num_rows:
        return []
    has_subjects = "subject" in given.column_names
    numbers = partitions_of(rows if has_subjects else rows.drop_columns("subject"), info)
    subjects_of = [subject_of(number) for number in range(len(info.partitions))]
    if has_subjects and len(set(subjects_of)) == len(subjects_of):  # each partition stores its own subject alone
        own = pc.index_in(rows.column("subject").cast(pa.utf8()), pa.array(subjects_of))
        numbers = pc.coalesce(own, numbers)
    shares = []
    for number in sorted(pc.unique(numbers).to_pylist()):
        share = rows.filter(pc.equal(numbers, number))
        if not has_subjects:
            subjects = pa.array([subject_of(number)] * share.num_rows, pa.utf8())
            share = share.set_column(share.column_names.index("subject"), "subject", subjects)
        shares.append((PartitionId(number), share))
    return shares


def check_shares(shares: Sequence[tuple[PartitionId, pa.Table]], info: StreamInfo, bytes_max: int) -> None:
    """Raise RemoteError, as the leaders would, for rows that they would refuse: bad_request, too_large.

    What only a leader knows, such as the keys that it takes, is not checked.
    """
    import pyarrow.compute as pc

    from penstock.batch.subject_patterns import SubjectPatterns

    limits_of = (
        (("value", "headers"), info.config.max_message_bytes, "a message (value and headers)"),
        (("key",), limits.KEY_BYTES_MAX, "a key"),
        (("headers",), limits.HEADER_BLOCK_BYTES_MAX, "a header block"),
    )
    for number, share in shares:
        patterns = info.config.subjects_of(number)
        subjects = _one(share.column("subject"))
        on = SubjectPatterns(patterns).mask(subjects.cast("utf8"))
        if not pc.all(on).as_py():
            subject = subjects.filter(pc.invert(on))[0].as_py()
            text = f"the subject {subject!r} is not one of this stream's, which is on {', '.join(map(repr, patterns))}"
            raise RemoteError(ErrorCode.BAD_REQUEST, f"nothing was stored: {text}")
        for names, limit, what in limits_of:
            sizes = [pc.fill_null(pc.binary_length(_one(share.column(name))), 0) for name in names]
            if (found := pc.max(reduce(pc.add, sizes)).as_py()) > limit:
                text = f"nothing was stored: {what} of {found} bytes is over the limit of {limit}"
                raise RemoteError(ErrorCode.TOO_LARGE, text, size_bytes=found, limit_bytes=limit)
        columns.check_row_sizes(share, bytes_max)


def _by_content(data: pa.RecordBatch | pa.Table, stream: int | StreamInfo, key_map: KeyMap) -> pa.Int32Array:
    def subjects() -> Any:
        assert isinstance(stream, StreamInfo)
        return _subjects(data, stream)

    split = PUBLISHER if not isinstance(stream, StreamInfo) else stream.config.split
    rows = data.num_rows
    keys = None if split.token else _binary(data, "key")
    return by_content(split, key_map, rows, keys, subjects, lambda: placed(_binary(data, "value"), key_map, rows))


def _subjects(data: pa.RecordBatch | pa.Table, info: StreamInfo) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    given = _one(data.column("subject")).cast(pa.string()) if "subject" in data.schema.names else None
    if given is None or given.null_count:
        if is_wildcard(info.subject):
            text = f"by subject ({info.config.partition_by}), and rows without one are not on {info.subject!r}"
            raise ValueError(f"stream {info.name!r} is split {text}: give each a subject")
        given = pc.fill_null(pa.nulls(data.num_rows, pa.string()) if given is None else given, info.subject)
    return given


def _one(column: Any) -> Any:
    """Return a column as one contiguous array."""
    import pyarrow as pa

    column = columns.decoded(column)
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _binary(data: pa.RecordBatch | pa.Table, name: str) -> pa.BinaryArray | None:
    """Return a column as bytes with 32-bit value offsets; None if it is missing or all null."""
    import pyarrow as pa

    if name not in data.schema.names:
        return None
    column = _one(data.column(name))
    kind = column.type
    if column.null_count == len(column):
        return None
    if not (pa.types.is_binary(kind) or pa.types.is_string(kind)):
        is_other_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
        is_other_bytes = (
            pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind)
        )
        if not (is_other_text or is_other_bytes):
            raise TypeError(f"the column {name!r} is {kind}; it must be text or binary")
        column = column.cast(pa.binary())
    return column
