"""One batch of an archive as tasks: each fetches some pieces and writes them to files. Runners carry the tasks out.

Rules: a task depends on nothing but its batch, so it can run on another machine, and again. A task that fails deletes
its files: they have no commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from penstock.lake.archiving.decoding import DecodedWriter, avro_decoder, struct_of
from penstock.lake.reading.pieces import Piece
from penstock.lake.reading.positions import Key
from penstock.lake.reading.typed import Typed
from penstock.lake.tables.data_files import LakeWriter, Writing, place_of
from penstock.lake.tables.table import LakeFile


class Batch(NamedTuple):
    """The pieces and files of one batch. `tasks`: the pieces of each task.

    With a decoder, `rejects` says how rejected values are written, and `rejects_from` from which offset on.
    """

    tasks: Sequence[Sequence[Piece]]
    rows: Writing
    rejects: Writing | None = None
    rejects_from: Mapping[Key, int] = {}
    decode: str = ""
    schema: str = ""
    typed: Typed | None = None


Runner = Callable[[Batch], list[LakeFile]]
"""Function that carries out all tasks of a batch, and returns their files, synced to disk."""

Read = Callable[[Piece], Iterator[pa.RecordBatch]]
"""Function from a piece to its rows, with the columns of an archive and those of `Batch.typed`."""


def packed(pieces: Sequence[Piece], sizes: Mapping[Key, float], file_bytes: int) -> list[list[Piece]]:
    """Group pieces into tasks of about `file_bytes`, so that small pieces of several partitions share a file."""
    tasks: list[list[Piece]] = []
    room = 0.0
    for piece in pieces:
        size = (piece.end - piece.start) * sizes.get(Key(piece.stream, piece.partition), 0.0)
        if not tasks or size > room:
            tasks.append([])
            room = float(file_bytes)
        tasks[-1].append(piece)
        room -= size
    return tasks


def drop_files(batch: Batch, files: Iterable[LakeFile]) -> None:
    """Delete files of a batch that no commit will have."""
    for file in files:
        how = batch.rejects if file.is_rejects and batch.rejects is not None else batch.rows
        place_of(how, file.path).unlink(missing_ok=True)


def write_task(batch: Batch, number: int, read: Read) -> list[LakeFile]:
    """Carry out one task of a batch, but not one of JSON: fetch, decode and write. Return its files."""
    rows = (found for piece in batch.tasks[number] for found in read(piece))
    if batch.decode:
        assert batch.decode in ("avro", "schema")
        assert batch.rejects is not None
        return _decoded(batch, batch.rejects, rows)
    writer = LakeWriter(batch.rows)
    try:
        for found in rows:
            writer.add(found)
        return writer.finish()
    except BaseException:
        writer.drop()
        raise


def _decoded(batch: Batch, rejects: Writing, rows: Iterator[pa.RecordBatch]) -> list[LakeFile]:
    decode = None if batch.typed is not None else avro_decoder(batch.schema)
    writer = DecodedWriter(batch.rows, rejects, batch.rejects_from)
    try:
        for found in rows:
            writer.add(*(struct_of(found) if decode is None else (found, *decode(found.column("value")))))
        return list(writer.finish())
    except BaseException:
        writer.drop()
        raise
