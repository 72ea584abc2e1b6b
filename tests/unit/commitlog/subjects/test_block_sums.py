"""Checksums of blocks: what is read has been verified, or is refused."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.commitlog.subjects import layout, reading, writing
from penstock.commitlog.subjects.block_sums import BlockSums, IndexedBlocks
from penstock.commitlog.subjects.layout import SegmentIdentity
from penstock.commitlog.subjects.reading import SubjectIndex
from penstock.commitlog.subjects.summing import SubjectSum
from penstock.hot.subject_filter import PAGE_BYTES
from penstock.vfs import File
from penstock.vfs.memory import MemoryVfs
from tests.subjects import BASE, rows_on

CONTENT = b"".join(b"%07d\n" % number for number in range(40_000))  # 78 blocks, the last one not full


def opened(content: bytes = CONTENT, pieces: int = 1_000) -> tuple[File, File]:
    """A segment of that content, and its index."""
    vfs = MemoryVfs()
    segment, file = vfs.open("s.arrows", create=True), vfs.open("s.subjects", create=True)
    segment.write_at(0, content)
    sums = BlockSums()
    for begin in range(0, len(content), pieces):
        sums.add(content[begin : begin + pieces])
    total = SubjectSum()
    total.add(rows_on(["a", "b"]))
    identity = SegmentIdentity(2, 7, 1, 0xC0FFEE, BASE, BASE + 2, len(content))
    for _ in writing.write(file, total, identity, sums.pages()):
        pass
    return segment, file


def blocks_of(segment: File, file: File) -> IndexedBlocks:
    return IndexedBlocks(segment, SubjectIndex(file, reading.read_trailer(file)))


@pytest.mark.parametrize("pieces", [1, 4_096, 5_000, 10**6])
def test_any_range_is_read(pieces: int) -> None:
    content = CONTENT if pieces > 1 else CONTENT[:9_000]
    blocks = blocks_of(*opened(content, pieces))
    for begin, length in ((0, 10), (4_090, 12), (4_096, 4_096), (8_000, 1_000), (len(content) - 5, 5), (77, 0)):
        assert blocks.read(begin, length) == content[begin : begin + length]
    assert blocks.read(0, len(content)) == content
    with pytest.raises(CorruptionError, match="the end of the segment"):
        blocks.read(len(content) - 5, 6)


def test_a_block_is_read_once() -> None:
    blocks = blocks_of(*opened())
    assert blocks.read(5_000, 10)
    assert blocks.read_bytes == limits.SUM_BLOCK_BYTES + PAGE_BYTES
    assert blocks.read(4_096, 4_096)
    assert blocks.read_bytes == limits.SUM_BLOCK_BYTES + PAGE_BYTES


def test_a_changed_byte_is_found() -> None:
    segment, file = opened()
    segment.write_at(5_000, b"x")
    blocks = blocks_of(segment, file)
    assert blocks.read(0, 4_096) == CONTENT[:4_096]
    with pytest.raises(CorruptionError, match=r"s\.arrows.*4096|4096.*s\.arrows"):
        blocks.read(4_000, 200)


def test_a_changed_checksum_is_found_by_a_read_and_by_a_check() -> None:
    segment, file = opened()
    trailer = reading.read_trailer(file)
    assert trailer.sum_pages == layout.sum_pages_of(len(CONTENT)) == 2
    index = SubjectIndex(file, trailer)
    assert sum(len(block) for block in index.check()) == 2
    file.write_at(trailer.directory_position - PAGE_BYTES + 3, b"\x55\xaa")
    blocks = blocks_of(segment, file)
    assert blocks.read(0, 4_096) == CONTENT[:4_096]
    with pytest.raises(CorruptionError, match=r"s\.subjects"):
        blocks.read(70 * 4_096, 10)
    with pytest.raises(CorruptionError, match=r"s\.subjects"):
        list(index.check())


def test_pages_that_do_not_fit_the_segment_are_refused() -> None:
    _, file = opened()
    trailer = reading.read_trailer(file)
    wrong = layout.pack_trailer(trailer._replace(sum_pages=1, pages=trailer.pages + 1))
    file.write_at(file.size() - len(wrong), wrong)
    with pytest.raises(CorruptionError, match="parts that fill the file"):
        reading.read_trailer(file)
