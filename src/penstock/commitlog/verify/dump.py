"""The files of a log as rows for people: the output of `penstock dump`.

Rules: nothing is changed, and no error stops it: what cannot be read becomes a row with the key `damage` that says what
is wrong and where. A row is a dict of plain values; rows of one kind have the same keys.

| file name               | rows                                                                        |
|-------------------------|-----------------------------------------------------------------------------|
| `*.arrows`, `*.cut-*`   | the schema message, then one per batch                                      |
| `*.index`               | one per entry                                                               |
| `*.subjects`            | the trailer, then one per subject                                           |
| `checkpoint`            | one per slot                                                                |
| `lineage`               | one per leadership                                                          |
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from penstock.base.errors import CorruptionError, RemoteError
from penstock.batch import compression
from penstock.batch.header import BatchHeader
from penstock.batch.schema import SCHEMA_BYTES, check_schema_message
from penstock.commitlog.files import checkpoint as checkpoints
from penstock.commitlog.files import files, index
from penstock.commitlog.files import lineage as lineages
from penstock.commitlog.files.batch_walk import ResyncBounds, Walk, find_behind
from penstock.commitlog.subjects import reading
from penstock.commitlog.subjects.reading import SubjectIndex
from penstock.vfs import File, Vfs

Row = dict[str, object]


def file_rows(vfs: Vfs, path: str) -> Iterator[Row]:
    """Yield the rows of one file, chosen by its name (see the module's table); OSError if it cannot be opened.

    ValueError if it is no file of a log.
    """
    name = path.rsplit("/", 1)[-1]
    file = vfs.open(path, read_only=True)
    try:
        if name.endswith((".arrows", ".cleaned", ".mended")):
            yield from _segment_rows(file, with_schema=True)
        elif ".arrows.cut-" in name:
            yield from _segment_rows(file, with_schema=name.partition(".cut-")[2].partition(".")[0] == "0")
        elif name.endswith(".index"):
            yield from _index_rows(file)
        elif name.endswith((".subjects", ".subjects.new")):
            yield from _subject_rows(file)
        elif name == files.CHECKPOINT:
            yield from _checkpoint_rows(file)
        elif name.startswith(files.LINEAGE):
            yield from _lineage_rows(file)
        else:
            raise ValueError(f"{path}: not a file of a log")
    finally:
        file.close()


def _damage(error: CorruptionError | RemoteError, position: int) -> Row:
    return {"position": position, "damage": str(error)}


def _segment_rows(file: File, *, with_schema: bool) -> Iterator[Row]:
    position = 0
    offset: int | None = None
    if with_schema:
        try:
            stream_id, partition = check_schema_message(file.read_at(0, SCHEMA_BYTES), file=file.path)
            yield {"position": 0, "size_bytes": SCHEMA_BYTES, "stream_id": stream_id, "partition": partition}
        except (CorruptionError, RemoteError) as error:
            yield _damage(error, 0)
        position = SCHEMA_BYTES
        offset = files.base_offset_of(file.path.rsplit("/", 1)[-1])
    size = file.size()
    if offset is None:
        # A side file begins at an arbitrary position.
        found = find_behind(file, ResyncBounds(position - 1, size, 0, None))
        if found is None:
            return
        position, offset = found.position, found.base_offset
    while position < size:
        walk = Walk(file, position=position, end_position=size, offset=offset)
        for place, header in walk:
            yield _batch_row(place, header)
        if walk.mistake is None:
            return
        yield _damage(walk.mistake, walk.position)
        found = find_behind(file, ResyncBounds(walk.position, size, 0, None))
        if found is None:
            return
        position, offset = found.position, found.base_offset


def _batch_row(position: int, header: BatchHeader) -> Row:
    row: Row = {"position": position}
    row.update(asdict(header))
    row["run_id"] = header.run_id.hex()
    row["compression"] = str(compression.of(header))
    return row


def _index_rows(file: File) -> Iterator[Row]:
    for position in range(0, file.size(), index.ENTRY_BYTES):
        data = file.read_at(position, index.ENTRY_BYTES)
        try:
            entry = index.unpack_entry(data, file=file.path, position=position)
        except CorruptionError as error:
            yield _damage(error, position)
        else:
            yield {"number": position // index.ENTRY_BYTES, **entry._asdict()}


def _subject_rows(file: File) -> Iterator[Row]:
    try:
        trailer = reading.read_trailer(file)
        numbers = trailer._asdict()
        yield {**numbers.pop("segment")._asdict(), **numbers}
        for block in SubjectIndex(file, trailer).check():
            for number in range(len(block)):
                yield dict(block.row(number)._asdict())
    except CorruptionError as error:
        yield _damage(error, error.position)


def _checkpoint_rows(file: File) -> Iterator[Row]:
    for slot in range(checkpoints.SLOTS):
        position = slot * checkpoints.SLOT_STEP_BYTES
        data = file.read_at(position, checkpoints.SLOT_BYTES)
        if not any(data):
            continue  # never written
        try:
            yield {"slot": slot, **checkpoints.unpack_slot(data, file=file.path, position=position)._asdict()}
        except CorruptionError as error:
            yield _damage(error, position)


def _lineage_rows(file: File) -> Iterator[Row]:
    for position in range(0, file.size(), lineages.ENTRY_BYTES):
        data = file.read_at(position, lineages.ENTRY_BYTES)
        try:
            yield dict(lineages.unpack_entry(data, file=file.path, position=position)._asdict())
        except CorruptionError as error:
            yield _damage(error, position)
