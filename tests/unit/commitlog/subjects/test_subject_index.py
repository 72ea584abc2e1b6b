"""The file of a subject index: what is found in it, by whom it can be read, and that no wrong byte is believed."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.commitlog.subjects import blocks, layout, reading
from penstock.commitlog.subjects.blocks import SubjectRow
from penstock.commitlog.subjects.layout import UnknownVersionError
from penstock.commitlog.subjects.reading import SubjectIndex, WantedSubjects
from penstock.commitlog.subjects.summing import SubjectSum
from penstock.hot.crc import crc32c
from penstock.hot.subject_filter import PAGE_BYTES
from penstock.vfs import File
from tests import hot_modes
from tests.subjects import BASE, opened, rows_on, written

GOLDEN = Path(__file__).parents[3] / "compat" / "golden" / "format1.subjects"
FEW = ["b.2", "a", "b.2", "ü", "b.10", "a", "b.2"]
WRITTEN_WITH = 26
"""The version of pyarrow, with its compressor, that wrote the golden file."""


def table_of(subjects: list[str]) -> list[SubjectRow]:
    rows: dict[str, list[int]] = {}
    for row, subject in enumerate(subjects):
        rows.setdefault(subject, []).append(BASE + row)
    found = [SubjectRow(subject, len(these), these[0], these[-1]) for subject, these in rows.items()]
    return sorted(found, key=lambda row: row.subject.encode())


def many(count: int, seed: int = 1) -> list[str]:
    chance = Random(seed)
    return [f"orders.customer.{chance.randrange(count)}" for _ in range(3 * count)]


def all_of(file: File) -> bytes:
    return file.read_at(0, file.size())


def rows_of(index: reading.SubjectIndex, begin: bytes = b"", end: bytes | None = None) -> list[SubjectRow]:
    columns = [[column.to_pylist() for column in batch.columns] for batch in index.between(begin, end)]
    return [SubjectRow(*row) for batch in columns for row in zip(*batch, strict=True)]


@pytest.mark.parametrize("subjects", [["one"], FEW, many(3_000), ["s." + "x" * n for n in range(1, 900)]])
def test_what_is_written_is_found(subjects: list[str]) -> None:
    index = opened(written(subjects))
    wanted = table_of(subjects)
    assert [row for block in index.check() for row in map(block.row, range(len(block)))] == wanted
    for row in wanted[:: max(1, len(wanted) // 100)]:
        assert index.find(row.subject.encode()) == row
    assert rows_of(index) == wanted
    begin, end = wanted[len(wanted) // 3].subject.encode(), wanted[2 * len(wanted) // 3].subject.encode()
    assert rows_of(index, begin, end) == [row for row in wanted if begin <= row.subject.encode() < end]
    assert rows_of(index, b"\xff") == rows_of(index, b"", b"") == []
    for absent in (b"", b"absent", b"zzz", wanted[0].subject.encode() + b"!"):
        assert index.find(absent) is None
    assert (index.trailer.subjects, index.trailer.rows) == (len(wanted), len(subjects))


def test_blocks_are_bounded_and_the_filter_refuses_most_absent_subjects() -> None:
    index = opened(written(many(5_000)))
    sizes = [len(block) for block in index.check()]
    assert max(sizes) == limits.SUBJECT_BLOCK_ROWS
    wide = opened(written([f"{n:04}." + "x" * 1_000 for n in range(300)]))
    assert max(len(block) for block in wide.check()) <= limits.SUBJECT_BLOCK_TEXT_BYTES // 1_000
    assert sum(index.may_hold(b"absent.%d" % n) for n in range(5_000)) < 150


def test_arrow_reads_the_table() -> None:
    with pa.ipc.open_stream(all_of(written(FEW))) as reader:
        table = reader.read_all()
    assert table.schema.equals(blocks.schema())
    assert [SubjectRow(*row.values()) for row in table.to_pylist()] == table_of(FEW)


def test_polars_reads_the_table() -> None:
    polars = pytest.importorskip("polars")
    frame = polars.read_ipc_stream(all_of(written(FEW)))
    assert frame["subject"].to_list() == [row.subject for row in table_of(FEW)]


def test_the_schema_message_and_the_metadata_are_what_arrow_writes() -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([[f"{n}" * 99 for n in range(9)], range(9), range(9), range(9)], schema=blocks.schema())
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    raw = sink.getvalue().to_pybytes()
    assert raw.startswith(layout.SCHEMA)
    assert raw.endswith(layout.END_OF_STREAM)
    message = raw[len(layout.SCHEMA) : -len(layout.END_OF_STREAM)]
    block = blocks.decode(message, 9, crc32c(message), file="", position=0)
    assert block.batch.equals(batch)


def test_the_golden_file_is_what_is_written_and_read() -> None:
    subjects = json.loads(GOLDEN.with_suffix(".subjects.json").read_text(encoding="utf-8"))
    golden = GOLDEN.read_bytes()
    file = written(["x"])
    file.truncate(0)
    file.write_at(0, golden)
    index = opened(file)
    assert [row for block in index.check() for row in map(block.row, range(len(block)))] == table_of(subjects)
    assert tuple(index.trailer.segment) == (2, 7, 1, 0xC0FFEE, BASE, BASE + len(subjects), 123_456)
    if int(pa.__version__.split(".")[0]) != WRITTEN_WITH:
        pytest.skip("another version of the compressor may find other bytes that unpack to the same")
    assert all_of(written(subjects)) == golden


@pytest.mark.parametrize("seed", range(40))
def test_no_flipped_byte_is_believed(seed: int) -> None:
    file = written(FEW + many(40))
    chance = Random(seed)
    data = bytearray(all_of(file))
    at = chance.randrange(len(data))
    data[at] ^= 1 << chance.randrange(8)
    file.write_at(0, bytes(data))
    with pytest.raises(CorruptionError) as caught:
        for _ in opened(file).check():
            pass
    assert caught.value.file == "x.subjects"
    table = {row.subject.encode(): row for row in table_of(FEW + many(40))}
    for subject, row in table.items():
        try:
            assert opened(file).find(subject) == row
        except CorruptionError:
            continue


@pytest.mark.parametrize("length", [0, 1, 95, 96, 300, -98, -2])
def test_a_short_file_is_no_index(length: int) -> None:
    file = written(FEW)
    file.truncate(length % (file.size() + 1))
    with pytest.raises(CorruptionError):
        reading.read_trailer(file)


def test_a_later_version_is_told_apart() -> None:
    file = written(FEW)
    position = file.size() - layout.TRAILER_BYTES
    trailer = bytearray(file.read_at(position, layout.TRAILER_BYTES))
    trailer[8] = 2
    trailer[-4:] = crc32c(bytes(trailer[:-4])).to_bytes(4, "little")
    file.write_at(position, bytes(trailer))
    with pytest.raises(UnknownVersionError, match="version 2"):
        reading.read_trailer(file)


def test_nothing_large_is_unpacked() -> None:
    """A block says that its buffers unpack to gigabytes, or to a byte more or less, and its checksum is right."""
    rows = opened(written([f"s.{number:06}" for number in range(1_000)])).block(0)
    count = len(rows)
    data = bytearray(blocks.encode(rows, 0, count))
    for unpacked in (len(rows.text(0, count)[1]), 8 * count):  # LZ4 does not make the ends of the subjects smaller
        at = data.index(unpacked.to_bytes(8, "little"), blocks.BODY_POSITION)
        for length in (2**40, -2, 0, unpacked - 1, unpacked + 1):
            wrong = bytearray(data)
            wrong[at : at + 8] = length.to_bytes(8, "little", signed=True)
            with pytest.raises(CorruptionError):
                blocks.decode(bytes(wrong), count, crc32c(bytes(wrong)), file="", position=0)


def test_large_sums_become_runs_that_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    subjects = many(3_000, seed=2)
    monkeypatch.setattr(limits, "SUBJECT_SUM_BYTES", 30_000)
    total = SubjectSum()
    for begin in range(0, len(subjects), 500):
        total.add(rows_on(subjects[begin : begin + 500], BASE + begin))
    parts = [*total.parts()]
    assert len(parts) > 2
    assert [row for part in parts for row in map(part.row, range(len(part)))] == table_of(subjects)
    assert total.rows == len(subjects)


def test_rows_without_a_subject_do_not_count() -> None:
    total = SubjectSum()
    total.add(rows_on(["a", None, "a"]))
    total.add(rows_on([None]))
    assert total.rows == 2
    assert [*map(total.in_memory().row, range(1))] == [SubjectRow("a", 2, BASE, BASE + 2)]
    empty = SubjectSum()
    empty.add(rows_on([None]))
    assert (empty.rows, len(empty.in_memory())) == (0, 0)


@hot_modes.needs_compiled
def test_plain_python_makes_the_same_filter() -> None:
    subjects = [one.encode() for one in many(300)]
    column = pa.array([one.decode() for one in subjects]).buffers()
    pages = 3
    filters = []
    for module in (hot_modes.plain("subject_filter"), hot_modes.running("subject_filter")):
        bits = bytearray(module.PAGE_BYTES * pages)
        module.add(bits, pages, memoryview(column[1]), memoryview(column[2]), len(subjects))
        for subject in subjects:
            begin = module.page_of(subject, pages) * module.PAGE_BYTES
            assert module.may_hold(bytes(bits[begin : begin + module.PAGE_BYTES]), subject)
        with pytest.raises(ValueError, match="value 0 is from 5"):
            module.add(bits, pages, memoryview(b"\5\0\0\0\3\0\0\0"), memoryview(b"abcdef"), 1)
        with pytest.raises(IndexError):
            module.add(bits, pages + 1, memoryview(column[1]), memoryview(column[2]), 1)
        with pytest.raises(IndexError):
            module.add(bits, pages, memoryview(b"\0\0\0\0"), memoryview(b""), 1)
        with pytest.raises(IndexError):
            module.may_hold(b"short", b"a")
        filters.append(bytes(bits))
    assert filters[0] == filters[1]


def test_many_subjects_are_looked_up_at_once() -> None:
    """The whole filter is read for many, a page for each of a few."""
    subjects = [f"n.{number}" for number in range(9_000)]
    index = opened(written(subjects))
    assert index.trailer.pages > 40
    table = {row.subject.encode(): (row.first, row.last) for row in table_of(subjects)}
    absent = [b"absent.%d" % number for number in range(500)]
    for names in ([*table][::9] + absent, [b"n.7"], [b"absent.1"], []):
        assert index.find_each(WantedSubjects(names)) == {name: table[name] for name in names if name in table}
    whole = next(SubjectIndex.check(index))
    assert whole.find_each(WantedSubjects([b"n.1", *absent])) == {b"n.1": table[b"n.1"]}


@pytest.mark.parametrize("damage", ["flip", "short"])
def test_no_wrong_page_of_the_filter_is_believed(damage: str) -> None:
    subjects = many(3_000)
    file = written(subjects)
    trailer = reading.read_trailer(file)
    names = [row.subject.encode() for row in table_of(subjects)]
    at = trailer.filter_position + 3 * PAGE_BYTES + 100
    byte = file.read_at(at, 1)[0]
    index = SubjectIndex(file, trailer)
    if damage == "short":
        file.truncate(at)
    else:
        file.write_at(at, bytes([byte ^ 1]))
    with pytest.raises(CorruptionError) as caught:
        index.find_each(WantedSubjects(names))
    assert caught.value.file == "x.subjects"
    assert caught.value.position == (at if damage == "short" else trailer.filter_position + 3 * PAGE_BYTES)


@hot_modes.needs_compiled
def test_the_compiled_filter_is_probed_as_the_plain_one() -> None:
    subjects = [f"n.{number}".encode() for number in range(500)] + [b"", b"x" * 300]
    names = [*subjects, *(b"absent.%d" % number for number in range(3_000))]
    bits = layout.FilterBits(3)
    for subject in subjects:
        bits.add(1, memoryview(b"\0\0\0\0" + len(subject).to_bytes(4, "little")), memoryview(subject))
    pages = b"".join(bits.page(number) for number in range(3))
    found = []
    for module in (hot_modes.plain("subject_filter"), hot_modes.running("subject_filter")):
        wanted = module.hashes(names)
        found.append((bytes(wanted), module.may_hold_each(pages, wanted)))
        assert module.may_hold_each(pages, module.hashes([])) == []
        for page in range(3):
            at = page * PAGE_BYTES + 7
            with pytest.raises(module.WrongPageError, match=f"page {page} "):
                module.may_hold_each(pages[:at] + b"\xaa\x55" + pages[at + 2 :], wanted)
        for wrong in (b"", pages[:-1]):
            with pytest.raises(IndexError):
                module.may_hold_each(wrong, wanted)
        with pytest.raises(IndexError):
            module.may_hold_each(pages, wanted[:-1])
    assert found[0] == found[1]
    assert found[0][1][: len(subjects)] == [*range(len(subjects))]
    assert len(found[0][1]) < len(names) // 2


@hot_modes.needs_compiled
def test_the_compiled_search_of_filters_finds_what_the_plain_one_finds() -> None:
    filters: list[bytes | None] = [None]
    for number in range(20):
        bits = layout.FilterBits(1 + number % 3)
        for subject in (b"of.%d" % number, b"common", b"", b"x" * 300):
            bits.add(1, memoryview(b"\0\0\0\0" + len(subject).to_bytes(4, "little")), memoryview(subject))
        filters.append(b"".join(bits.page(page) for page in range(1 + number % 3)))
    found = []
    for module in (hot_modes.plain("subject_filter"), hot_modes.running("subject_filter")):
        for one in filters:
            if one is not None:
                module.check_pages(one)
                at = len(one) - PAGE_BYTES + 9
                with pytest.raises(module.WrongPageError, match=f"page {len(one) // PAGE_BYTES - 1} "):
                    module.check_pages(one[:at] + bytes([one[at] ^ 4]) + one[at + 1 :])
        for wanted, numbers in (
            ([b"common"], [*range(21)]),
            ([b"of.7"], [0, 8]),
            ([b"of.7", b"absent", b"of.19"], [0, 8, 20]),
            ([b""], [*range(21)]),
            ([], [0]),
        ):
            assert module.holding(filters, module.hashes(wanted)) == numbers
        found.append([module.holding(filters, module.hashes([b"absent.%d" % number])) for number in range(2_000)])
        for wrong in (b"", b"\0" * (PAGE_BYTES - 1), b"\0" * (PAGE_BYTES + 1)):
            with pytest.raises(IndexError):
                module.check_pages(wrong)
        with pytest.raises(IndexError):
            module.holding([b""], module.hashes([b"a"]))
        with pytest.raises(IndexError):
            module.holding([None], bytearray(7))
    assert found[0] == found[1]


@hot_modes.needs_compiled
def test_a_row_is_found_by_the_compiled_search_as_by_the_plain_one() -> None:
    subjects = sorted({one.encode() for one in many(300)} | {b"", b"a", b"aa", b"orders", b"\xff"})
    column = pa.array(subjects, pa.binary()).buffers()
    ends, text = memoryview(column[1]).cast("B").cast("i"), memoryview(column[2]).cast("B")
    wanted = [*subjects, b"b", b"orders.", b"orders.customer.1!", b"zz", b"\xff\xff"]
    plain, running = (
        [hot_modes_of("subject_filter").row_of(ends, text, len(subjects), one) for one in wanted]
        for hot_modes_of in (hot_modes.plain, hot_modes.running)
    )
    assert plain == running
    assert plain[: len(subjects)] == [*range(len(subjects))]
    with pytest.raises(IndexError):
        hot_modes.running("subject_filter").row_of(ends[: len(subjects)], text, len(subjects), b"a")
    with pytest.raises(IndexError):
        hot_modes.running("subject_filter").row_of(ends, text[:-1], len(subjects), b"a")


def test_rows_whose_subject_was_erased_have_the_empty_one() -> None:
    index = opened(written([""] * 3))
    assert index.find(b"") == SubjectRow("", 3, BASE, BASE + 2)
    assert [len(block) for block in index.check()] == [1]
