"""Walks a segment batch by batch, verifying each, and resynchronises behind corruption.

Rules: memory is bounded by one batch, whatever the size of the file. A walk stops at the first invalid byte and says
why; the caller decides whether that is a torn tail or corruption.

Resynchronisation tries, in this order: the position behind the corrupt batch, if its header still gives a size;
positions from the index; the next bytes that look like the start of a batch. A batch found there must verify, and its
offsets must fit between the known ones before and behind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from penstock.base import limits
from penstock.base.errors import CorruptionError
from penstock.batch import codec, layout
from penstock.batch.header import BatchHeader
from penstock.vfs import File

_MARK = layout.TEMPLATE[: layout.BODY_LENGTH_POSITION]
_ALIGNMENT = 8


class Window:
    """Reads a file in large blocks and returns small pieces."""

    __slots__ = ("_data", "_end", "_file", "_start")

    def __init__(self, file: File, end_position: int) -> None:
        self._file = file
        self._end = end_position
        self._start = 0
        self._data = b""

    def read(self, position: int, length: int) -> bytes:
        """Return up to `length` bytes from `position`; fewer only at the end."""
        length = min(length, self._end - position)
        if length <= 0:
            return b""
        begin = position - self._start
        if begin < 0 or begin + length > len(self._data):
            wanted = min(max(length, limits.SCAN_READ_BYTES), self._end - position)
            self._data = self._file.read_at(position, wanted)
            self._start, begin = position, 0
        return self._data[begin : begin + length]


class Walk:
    """Iterates over verified, contiguous batches from a position on, as (position, header).

    Afterwards `position` and `offset` give the end of the walk, and `mistake` the error there (None: the end of the
    file).
    """

    __slots__ = ("_end", "_window", "mistake", "offset", "path", "position")

    def __init__(self, file: File, *, position: int, end_position: int, offset: int) -> None:
        self.path = file.path
        self.position = position
        self.offset = offset
        self.mistake: CorruptionError | None = None
        self._end = end_position
        self._window = Window(file, end_position)

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """Yield the batches. Usable once."""
        while self.position < self._end:
            try:
                header = verified_at(self._window, self.position, self._end, self.path)
                if header.base_offset != self.offset:
                    raise CorruptionError(self.path, self.position, f"offset {self.offset}", str(header.base_offset))
            except CorruptionError as error:
                self.mistake = error
                return
            position = self.position
            self.position += header.size_bytes
            self.offset = header.end_offset
            yield position, header


def verified_at(window: Window, position: int, end_position: int, path: str) -> BatchHeader:
    """Return the header of the complete, verified batch at `position`; raise CorruptionError otherwise."""
    header = codec.read_header(window.read(position, codec.PREFIX_BYTES), file=path, position=position)
    if header.size_bytes > end_position - position:
        raise CorruptionError(path, position, f"{header.size_bytes} bytes", f"{end_position - position} bytes")
    return codec.verify(window.read(position, header.size_bytes), file=path, position=position)


class ResyncPoint(NamedTuple):
    """A verified batch behind corruption."""

    position: int
    base_offset: int


class ResyncBounds(NamedTuple):
    """Bounds that a batch behind corruption must fit."""

    position: int  # of the corruption; the search begins behind it
    end_position: int
    offset: int
    end_offset: int | None  # None: unknown


def find_behind(
    file: File, beyond: ResyncBounds, hints: Iterable[int] = (), *, by_marks: bool = True
) -> ResyncPoint | None:
    """Return the first verified batch behind the corruption, or None. `hints`: positions to try first.

    `by_marks`: also search for bytes that look like the start of a batch. A message may contain such bytes, and whole
    batches.
    """
    window = Window(file, beyond.end_position)
    budget = limits.RESYNC_BYTES_MAX
    for position in _candidates(file, window, beyond, hints, by_marks=by_marks):
        try:
            header = codec.read_header(window.read(position, codec.PREFIX_BYTES))
            if header.size_bytes > beyond.end_position - position:
                continue
            budget -= header.size_bytes
            if budget < 0:
                return None
            codec.verify(file.read_at(position, header.size_bytes))
        except CorruptionError:
            continue
        fits_end = beyond.end_offset is None or header.end_offset <= beyond.end_offset
        if header.base_offset >= beyond.offset and fits_end:
            return ResyncPoint(position, header.base_offset)
    return None


def _candidates(
    file: File, window: Window, beyond: ResyncBounds, hints: Iterable[int], *, by_marks: bool
) -> Iterator[int]:
    first = []
    with contextlib.suppress(CorruptionError):
        header = codec.read_header(window.read(max(0, beyond.position), codec.PREFIX_BYTES))
        # If the file ends inside the batch, this is a position behind the end.
        first.append(beyond.position + header.size_bytes)
    yield from (place for place in chain(first, hints) if beyond.position < place < beyond.end_position)
    if not by_marks:
        return
    start = beyond.position - beyond.position % _ALIGNMENT + _ALIGNMENT
    while start < beyond.end_position:
        data = file.read_at(start, min(limits.SCAN_READ_BYTES, beyond.end_position - start))
        place = data.find(_MARK)
        while place >= 0:
            if place % _ALIGNMENT == 0:
                yield start + place
            place = data.find(_MARK, place + 1)
        if len(data) < limits.SCAN_READ_BYTES:
            return
        # A mark may span two pieces.
        start += len(data) - (len(_MARK) + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
