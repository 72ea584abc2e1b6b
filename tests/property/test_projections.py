"""What a broker takes out of a log is what whoever reads all of it would select: of any columns, subjects and range."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.config import Compression
from penstock.base.ids import Offset, StreamId
from penstock.base.subjects import matches
from penstock.batch import codec, projecting
from penstock.batch.schema import arrow_schema
from penstock.commitlog import LogConfig, LogView, SubjectQueries
from penstock.messages import FetchRequest
from penstock.node.api.projections import Project
from penstock.vfs.memory import MemoryVfs
from tests.batch_samples import ROWS, Row, message_of, with_header
from tests.logs import DIRECTORY, open_log
from tests.property.test_subject_queries import harm_file

COLUMNS = tuple(arrow_schema().names)
BATCHES = st.tuples(
    ROWS, st.integers(1, 6), st.integers(0, 3), st.sampled_from([None, None, *Compression]), st.integers(0, 1)
)
"""Rows, how often they are there, how many offsets are missing behind them, the codec, how much the epoch rises."""
PATTERNS = st.lists(st.sampled_from([">", "*", "orders.*", "orders.eu", "x", "a.>", "größe.→"]), min_size=1, max_size=2)


def log_of(batches: list[tuple[list[Row], int, int, Compression | None, int]]) -> tuple[MemoryVfs, LogView, list[Any]]:
    """A log of several segments; its rows, and the epoch of each."""
    vfs, epoch, rows = MemoryVfs(), 1, []
    log = open_log(vfs, LogConfig(segment_bytes=4096))
    for content, times, gap, wished, more in batches:
        epoch += more
        base = log.log_end
        message = message_of(content * times, base_offset=base, leader_epoch=epoch)
        message = with_header(message, end_offset=base + times * len(content) + gap)
        rows += [(row, epoch) for row in codec.check_rows(message).to_pylist()]
        if wished is not None and wished is not Compression.NONE:
            message = bytearray(codec.compressed(message, wished)[0])
        log.append(bytes(message), codec.read_header(message))
        log.tick(0)
    return vfs, log.view(), rows


@given(
    batches=st.lists(BATCHES, min_size=1, max_size=8),
    columns=st.none() | st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=6, unique=True),
    subjects=st.none() | PATTERNS,
    part=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    has_end=st.booleans(),
    piece_bytes=st.sampled_from([1_000, 2_500, 100_000]),
    source_bytes=st.sampled_from([1, 3_000, 2**30]),
    bytes_max=st.sampled_from([1, 500, 2**30]),
    index=st.sampled_from([None, "whole", "whole", "lacks some", "harmed"]),
    rows_per_match=st.sampled_from([1, 1, 4, 16]),
    segments_max=st.sampled_from([1, 512]),
    picks=st.sampled_from([(64 * limits.KIB, 4096, 64 * limits.KIB, 4), (1, 64, 1, 1), (1, 4096, 300, 1)]),
)
def test_what_is_taken_out_is_what_would_be_selected(
    batches: list[tuple[list[Row], int, int, Compression | None, int]],
    columns: list[str] | None,
    subjects: list[str] | None,
    part: tuple[float, float],
    has_end: bool,
    piece_bytes: int,
    source_bytes: int,
    bytes_max: int,
    index: str | None,
    rows_per_match: int,
    segments_max: int,
    picks: tuple[int, ...],
) -> None:
    names = ("SUMMED_BATCH_BYTES", "SUM_BLOCK_BYTES", "PICKED_ROW_BYTES", "PICKED_SUBJECTS_SHARE")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(names, picks, strict=True):
            patch.setattr(limits, name, value)
        patch.setattr(limits, "PROJECTED_PIECE_BYTES", piece_bytes)
        patch.setattr(limits, "PROJECTED_SOURCE_BYTES_MAX", source_bytes)
        patch.setattr(limits, "SKIPPED_ROWS_PER_MATCH", rows_per_match)
        patch.setattr(limits, "SKIPPED_SEGMENTS_MAX", segments_max)
        check(log_of(batches), columns, subjects, part, has_end, bytes_max, index)


def check(
    log: tuple[MemoryVfs, LogView, list[Any]],
    columns: list[str] | None,
    subjects: list[str] | None,
    part: tuple[float, float],
    has_end: bool,
    bytes_max: int,
    index: str | None,
) -> None:
    vfs, view, rows = log
    if index is not None:
        SubjectQueries(view, view.log_end).count([">"])  # makes them
        paths = [f"{DIRECTORY}/{name}" for name in vfs.list(DIRECTORY) if name.endswith(".subjects")]
        for path in paths[::2] if index != "whole" else ():
            harm_file(vfs, path, part[0], "remove" if index == "lacks some" else "flip")
    first, last = sorted(round(one * view.log_end) for one in part)
    end = last if has_end else None
    names = COLUMNS if columns is None else columns
    expected = [
        {name: row[name] for name in names}
        for row, _ in rows
        if first <= row["offset"] < (view.log_end if end is None else end)
        and (subjects is None or any(matches(one, row["subject"]) for one in subjects))
    ]
    found: list[Any] = []
    offset = first
    while offset < (view.log_end if end is None else end):
        request = FetchRequest(
            stream_id=StreamId(7),
            offset=Offset(offset),
            columns=None if columns is None else tuple(columns),  # type: ignore[arg-type]
            subjects=None if subjects is None else tuple(subjects),
            end=None if end is None else Offset(end),
            bytes_max=bytes_max,
        )
        query = Project(view, vfs, view.log_end, request, is_indexed=index is not None)
        query.run()
        assert offset < query.end_offset <= (view.log_end if end is None else end)
        schema = projecting.schema_of(names)
        if query.raw:
            table = pa.Table.from_batches(
                projecting.from_stream(query.raw, query.raw_crc, schema, source="here"), schema
            )
            found += table.to_pylist()
        before = [epoch for row, epoch in rows if row["offset"] < query.end_offset]
        assert not before or query.last_epoch in (before[-1], None if index is not None else before[-1])
        offset = query.end_offset
    assert found == expected
