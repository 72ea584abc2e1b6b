"""Row set: an immutable, compressed set of offsets, with its byte form.

Rules: a set never changes, so any thread may read it, and a snapshot of it is itself. Operations share what they leave
as it was. Equal sets have equal parts and equal bytes: each chunk has one valid form. Ranges are half-open.

Theory: as in Roaring bitmaps, offsets lie in chunks of 65,536. Chunks without members cost nothing, and neighbours that
are full cost as much as one: a purge of 100 million rows is a few bytes. A scattered chunk takes at most one bit an
offset. Arrow's bitmaps have the same order of bits, so rows are compared with a set by the byte (`bits`). PyRoaring has
no runs and no cheap snapshots (5 ms for 10 million offsets), and reads foreign bytes with foreign code.

    offsets   [ 0 … 65,535 ][ … 131,071 ][ … ][ … ][ … ]      chunk = offset >> 16
    spans     ( runs: 3-7, 9 )            (  2 full  )(dense)

| form of a span | in memory                                        | in bytes, behind the tag                      |
|----------------|--------------------------------------------------|-----------------------------------------------|
| full           | the number of chunks                             | varint: that number less 1                    |
| runs, <= 2,048 | first and last of each, 2 bytes each             | varints: their number less 1; each gap, length|
| dense          | 8,192 bytes, bit i of byte n: offset 8 n + i     | the same                                      |

A tag is a varint: the chunks since the span before, times 4, plus the form. The bytes begin with the version (1 byte)
and the number of spans (varint); a gap counts from 1 but the first, a length from 1.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from penstock.base.errors import CorruptionError
from penstock.base.limits import OFFSET_MAX

VERSION = 1
_CHUNK = 1 << 16
_LOW = _CHUNK - 1
_DENSE_BYTES = _CHUNK // 8
_RUNS_MAX = _DENSE_BYTES // 4  # more runs than these take more memory than a bit for each offset
_CHUNKS_MAX = (OFFSET_MAX >> 16) + 1
_FEW = 64  # members of a chunk for which a bitmap costs more
_ALL = (1 << _CHUNK) - 1
_FULL, _RUNS, _DENSE = range(3)
_SPAN_BYTES = 96  # of the objects of one span, beside its own bytes

Box = int | array | bytes  # type: ignore[type-arg]
"""Members of a span: a number of full chunks, runs, or a bitmap."""


class RowSet:
    """A set of offsets from 0 to OFFSET_MAX, exclusive."""

    __slots__ = ("boxes", "counts", "encoded", "firsts")  # of the others one for each span; never changed

    def __init__(self) -> None:
        """The empty set. See `of`, `of_runs`, `of_bits` and `decode`."""
        self.firsts = array("q")  # first chunk of each span
        self.boxes: list[Box] = []
        self.counts = array("q")  # members of each span
        self.encoded: bytes | None = None  # its byte form, if it is a part of a set that was split

    @classmethod
    def of(cls, offsets: Iterable[int]) -> RowSet:
        """Return the set of these offsets. A million takes a good part of a second: do it in a disk thread."""
        spans = _Spans()
        chosen = array("q", sorted(offsets))
        at = 0
        while at < len(chosen):
            chunk = chosen[at] >> 16
            stop = bisect_left(chosen, (chunk + 1) << 16, at)
            if stop - at < _FEW:
                runs = array("H")
                for offset in chosen[at:stop]:
                    low = offset & _LOW
                    if runs and low <= runs[-1] + 1:
                        runs[-1] = low
                    else:
                        runs.extend((low, low))
                spans.add_runs(chunk, runs)
            else:
                bits = bytearray(_DENSE_BYTES)
                for offset in chosen[at:stop]:
                    bits[(offset & _LOW) >> 3] |= 1 << (offset & 7)
                spans.add_int(chunk, int.from_bytes(bits, "little"))
            at = stop
        return spans.finish()

    @classmethod
    def of_runs(cls, runs: Iterable[tuple[int, int]]) -> RowSet:
        """Return the set of these ranges, which are in the order of their begins; they may overlap."""
        spans = _Spans()
        chunk, found = -1, array("H")
        for begin, end in _joined(runs):
            assert 0 <= begin < end <= OFFSET_MAX, (begin, end)
            while begin < end:
                if begin >> 16 != chunk:
                    spans.add_runs(chunk, found)
                    chunk, found = begin >> 16, array("H")
                if not begin & _LOW and end - begin >= _CHUNK:
                    spans.add(chunk, (end - begin) >> 16)
                    begin += (end - begin) & ~_LOW
                    chunk, found = -1, array("H")
                    continue
                stop = min(end, (chunk + 1) << 16)
                found.extend((begin & _LOW, (stop - 1) & _LOW))
                begin = stop
        spans.add_runs(chunk, found)
        return spans.finish()

    @classmethod
    def of_bits(cls, begin: int, bits: bytes) -> RowSet:
        """Return the set of the offsets whose bit is set: bit i of byte n is that of `begin` + 8 n + i."""
        spans = _Spans()
        chunk = begin >> 16
        left = int.from_bytes(bits, "little") << (begin & _LOW)
        while left:
            spans.add_int(chunk, left & _ALL)
            chunk, left = chunk + 1, left >> _CHUNK
        return spans.finish()

    def __bool__(self) -> bool:
        return bool(self.boxes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowSet) and self.firsts == other.firsts and self.boxes == other.boxes

    def __hash__(self) -> int:
        return hash((self.count, self.end))

    def __repr__(self) -> str:
        return f"<RowSet of {self.count} offsets in {len(self.boxes)} spans>"

    @property
    def count(self) -> int:
        """Number of members."""
        return sum(self.counts)

    @property
    def size_bytes(self) -> int:
        """Memory that it takes, in bytes, about; sets that share parts count them each."""
        return len(self.boxes) * _SPAN_BYTES + sum(_own_bytes(box) for box in self.boxes)

    @property
    def end(self) -> int:
        """The last offset and 1; 0 if it is empty."""
        if not self.boxes:
            return 0
        first, box = self.firsts[-1], self.boxes[-1]
        return (first + box) << 16 if isinstance(box, int) else (first << 16) + _last_of(box) + 1

    # Lookups.

    def _at(self, chunk: int) -> int:
        """Return the number of the last span that begins at or before `chunk`; -1 if there is none."""
        return bisect_right(self.firsts, chunk) - 1

    def box_of(self, chunk: int) -> Box | None:
        """Return the box of a chunk: 1 if it is full."""
        if (at := self._at(chunk)) < 0:
            return None
        box, first = self.boxes[at], self.firsts[at]
        if isinstance(box, int):
            return 1 if chunk < first + box else None
        return box if first == chunk else None

    def __contains__(self, offset: int) -> bool:
        box = self.box_of(offset >> 16)
        return box is not None and (isinstance(box, int) or _has(box, offset & _LOW))

    def any_in(self, begin: int, end: int) -> bool:
        """True if it has an offset of this range."""
        found = self.first_present(begin)
        return found is not None and found < end

    def first_present(self, begin: int) -> int | None:
        """Return the first member from `begin` on; None if there is none."""
        chunk = begin >> 16
        box = self.box_of(chunk)
        if box is not None:
            if isinstance(box, int):
                return begin
            if (found := _next_member(box, begin & _LOW)) is not None:
                return (chunk << 16) + found
        at = self._at(chunk) + 1
        if at == len(self.boxes):
            return None
        box, base = self.boxes[at], self.firsts[at] << 16
        return base if isinstance(box, int) else base + _first_of(box)

    def first_absent(self, begin: int) -> int:
        """Return the first offset from `begin` on that is no member."""
        while (box := self.box_of(chunk := begin >> 16)) is not None:
            if isinstance(box, int):
                full = self.boxes[at := self._at(chunk)]  # all chunks of the span; `box` is one
                assert isinstance(full, int)
                begin = (self.firsts[at] + full) << 16
                continue
            if (found := _next_absent(box, begin & _LOW)) < _CHUNK:
                return (chunk << 16) + found
            begin = (chunk + 1) << 16
        return begin

    def behind_absent(self, begin: int, count: int) -> int:
        """Return the end of the first `count` offsets from `begin` on that are no members, at least one."""
        for at in range(max(0, self._at(begin >> 16)), len(self.boxes)):
            first, box = self.firsts[at], self.boxes[at]
            base, stop = first << 16, _end_of(first, box) << 16
            if base > begin:
                if base - begin >= count:
                    break
                begin, count = base, count - (base - begin)
            if (absent := stop - begin - self._count_of(at, begin, stop)) <= 0:
                begin = max(begin, stop)
            elif absent < count:
                begin, count = stop, count - absent
            else:
                assert not isinstance(box, int), "a full span has none"
                members = _int_of(box) >> (begin - base)
                places = range(stop - begin)
                return begin + bisect_left(places, count, key=lambda end: end - _ones_below(members, end))
        return begin + count

    def last_absent(self, end: int) -> int:
        """Return the end of the last offset before `end` that is no member; 0 if there is none."""
        return bisect_left(range(end), True, key=lambda begin: self.count_in(begin, end) == end - begin)

    def count_in(self, begin: int, end: int) -> int:
        """Return the number of members in this range."""
        high = self._at((end - 1) >> 16)
        if begin >= end or high < 0:
            return 0
        low = max(0, self._at(begin >> 16))
        found = self._count_of(low, begin, end)
        if high > low:
            found += sum(self.counts[low + 1 : high]) + self._count_of(high, begin, end)
        return found

    def _count_of(self, at: int, begin: int, end: int) -> int:
        """Return the number of members of one span in this range."""
        base, box = self.firsts[at] << 16, self.boxes[at]
        span_end = base + (box << 16 if isinstance(box, int) else _CHUNK)
        begin, end = max(begin, base), min(end, span_end)
        if begin >= end:
            return 0
        if isinstance(box, int):
            return end - begin
        if end - begin == _CHUNK:
            return self.counts[at]
        low, high = begin - base, end - base
        if isinstance(box, bytes):
            return _ones_below(int.from_bytes(box[low >> 3 : (high + 7) >> 3], "little") >> (low & 7), high - low)
        return _members_below(box, high) - _members_below(box, low)

    def runs(self, begin: int = 0, end: int = OFFSET_MAX) -> Iterator[tuple[int, int]]:
        """Yield the longest runs of members in this range, as half-open ranges, in order."""
        waiting: tuple[int, int] | None = None
        for at in range(max(0, self._at(begin >> 16)), len(self.boxes)):
            base, box = self.firsts[at] << 16, self.boxes[at]
            if base >= end:
                break
            for first, last in [(0, (box << 16) - 1)] if isinstance(box, int) else _run_list(box):
                start, stop = max(begin, base + first), min(end, base + last + 1)
                if start >= stop:
                    continue
                if waiting is not None and waiting[1] == start:
                    waiting = waiting[0], stop
                    continue
                if waiting is not None:
                    yield waiting
                waiting = start, stop
        if waiting is not None:
            yield waiting

    def bits(self, begin: int, end: int) -> bytes:
        """Return one bit for each offset of the range, as `of_bits` takes them. The range should not be long."""
        found = 0
        for chunk in range(begin >> 16, ((end - 1) >> 16) + 1 if end > begin else begin >> 16):
            if (box := self.box_of(chunk)) is None:
                continue
            bits = _ALL if isinstance(box, int) else _int_of(box)
            place = (chunk << 16) - begin
            found |= bits << place if place >= 0 else bits >> -place
        found &= (1 << (end - begin)) - 1
        return found.to_bytes((end - begin + 7) // 8, "little")

    # Other sets.

    def __or__(self, other: RowSet) -> RowSet:
        """Return the union; it costs as much as the smaller set, and a copy of references to the larger one."""
        return self.union(other)

    def union(self, other: RowSet, before: RowSet | None = None, united: RowSet | None = None) -> RowSet:
        """Return the union. `united`: that with `before`; what both have in common is not put together again."""
        large, small = (self, other) if len(self.boxes) >= len(other.boxes) else (other, self)
        if not small.boxes:
            return large
        spans = _Spans()
        at = 0
        for first, box in zip(small.firsts, small.boxes, strict=True):
            until = max(at, bisect_left(large.firsts, first, at))
            if until > at and _end_of(large.firsts[until - 1], large.boxes[until - 1]) > first:
                until -= 1  # it reaches into this span
            spans.copy(large, at, until)
            at = until
            if not isinstance(box, int):
                if at < len(large.boxes) and large.firsts[at] <= first:
                    held = large.boxes[at]
                    if not isinstance(held, int):  # a full span has it already, and is copied later
                        mine = box if small is other else held
                        if before is None or united is None or before.box_of(first) is not mine:
                            spans.add_union(first, held, box, large.counts[at])
                        else:
                            united.add_chunk(first, spans)
                        at += 1
                else:
                    spans.add(first, box)
                continue
            start, stop = first, first + box
            while at < len(large.boxes) and large.firsts[at] < stop:
                if isinstance(held := large.boxes[at], int):
                    start, stop = min(start, large.firsts[at]), max(stop, large.firsts[at] + held)
                at += 1
            spans.add(start, stop - start)
        spans.copy(large, at, len(large.boxes))
        return spans.finish()

    def count_beside(self, other: RowSet) -> int:
        """Return the number of members that the other set does not have. What both share takes no time."""
        return sum(self._beside(other))

    def is_within(self, other: RowSet) -> bool:
        """True if the other set has all members."""
        return not any(self._beside(other))

    def _beside(self, other: RowSet) -> Iterator[int]:
        for first, box, count in zip(self.firsts, self.boxes, self.counts, strict=True):
            if isinstance(box, int):
                yield count - other.count_in(first << 16, (first + box) << 16)
            elif (held := other.box_of(first)) is None:
                yield count
            elif not isinstance(held, int) and held is not box and held != box:
                yield (_int_of(box) & ~_int_of(held)).bit_count()

    def add_chunk(self, chunk: int, spans: _Spans) -> None:
        """Add a chunk in which it has members."""
        at = self._at(chunk)
        if isinstance(box := self.boxes[at], int):
            spans.add(chunk, 1)
        else:
            spans.add(chunk, box, self.counts[at])

    def between(self, begin: int, end: int) -> RowSet:
        """Return the members of this range."""
        if begin <= 0 and end >= self.end:
            return self
        spans = _Spans()
        low = max(0, self._at(begin >> 16))
        high = bisect_left(self.firsts, (end + _LOW) >> 16)
        inner = range(low + 1, high - 1)
        for at in range(low, high):
            if at == inner.start and len(inner):
                spans.copy(self, inner.start, inner.stop)
            if at not in inner:
                spans.add_part(self.firsts[at], self.boxes[at], begin, end)
        return spans.finish()

    # Bytes.

    def encode(self) -> bytes:
        """Return its byte form; see the module. Of a large set it takes long, but of a part from `split`."""
        if self.encoded is None:
            return b"".join([_head(len(self.boxes)), *_encoded(self, 0, len(self.boxes))])
        return self.encoded

    @classmethod
    def decode(cls, data: bytes) -> RowSet:
        """Read the byte form. CorruptionError, with the position in `data`, if it is not exactly that of a set."""
        reader = _SpanReader(data, "a set of offsets")
        version = reader.byte()
        if version != VERSION:
            raise reader.wrong(f"a set of offsets of version {VERSION}", str(version))
        found = reader.spans(reader.number(_CHUNKS_MAX))
        reader.finish()
        return found

    def split(self, bytes_max: int) -> list[RowSet]:
        """Return sets that make up this one, each of at most `bytes_max` bytes when encoded. They have their bytes.

        A million scattered offsets take a second: do it in a disk thread.
        """
        assert bytes_max >= SPLIT_BYTES_MIN, bytes_max
        if self.encoded is not None and len(self.encoded) <= bytes_max:
            return [self]
        found: list[RowSet] = []
        start, size = 0, SPLIT_HEAD_BYTES
        parts: list[bytes] = []
        for at, part in enumerate(_encoded(self, 0, len(self.boxes))):
            if size + len(part) > bytes_max and at > start:
                found.append(self._part(start, at, parts))
                start, size, parts = at, SPLIT_HEAD_BYTES, []
            parts.append(part)
            size += len(part)
        if start < len(self.boxes):
            found.append(self._part(start, len(self.boxes), parts))
        return found

    def _part(self, start: int, stop: int, encoded: list[bytes]) -> RowSet:
        spans = _Spans()
        spans.copy(self, start, stop)
        part = spans.finish()
        (first,) = _encoded(part, 0, 1)  # its tag counts from 0
        part.encoded = b"".join([_head(stop - start), first, *encoded[1:]])
        return part


SPLIT_HEAD_BYTES = 1 + 10 + 10  # the version, the number of spans, and that the first tag counts from 0
SPLIT_BYTES_MIN = SPLIT_HEAD_BYTES + 10 + 3 + 6 * _RUNS_MAX
"""Each span fits: the longest is one of 2,048 runs."""

NONE = RowSet()


class _Spans:
    """Collects spans in order. Spans that a full one before covers are dropped."""

    def __init__(self) -> None:
        self._set = RowSet()
        self._end = 0  # the first chunk behind the last span

    def finish(self) -> RowSet:
        return self._set

    def add(self, first: int, box: Box, count: int | None = None) -> None:
        """Add a span; a full one may overlap the last one if that is full."""
        found = self._set
        if isinstance(box, int):
            stop = first + box
            if found.boxes and isinstance(last := found.boxes[-1], int) and first <= self._end:
                begin = found.firsts[-1]
                found.boxes[-1] = max(last, stop - begin)
                found.counts[-1] = max(last, stop - begin) << 16
                self._end = max(self._end, stop)
                return
            count = box << 16
        else:
            if first < self._end:
                return
            stop = first + 1
            count = _count(box) if count is None else count
        found.firsts.append(first)
        found.boxes.append(box)
        found.counts.append(count)
        self._end = stop

    def copy(self, source: RowSet, start: int, stop: int) -> None:
        """Add some spans of another set."""
        while start < stop:
            first, box = source.firsts[start], source.boxes[start]
            if first > self._end or (first == self._end and not isinstance(box, int)):
                break
            self.add(first, box, source.counts[start])
            start += 1
        if start >= stop:
            return
        found = self._set
        found.firsts += source.firsts[start:stop]
        found.boxes += source.boxes[start:stop]
        found.counts += source.counts[start:stop]
        self._end = _end_of(found.firsts[-1], found.boxes[-1])

    def add_runs(self, chunk: int, runs: array[int], count: int | None = None) -> None:
        """Add a chunk of these runs, which do not touch each other; none: nothing. `count`: members, if known."""
        if not runs:
            return
        if len(runs) == 2 and runs[0] == 0 and runs[1] == _LOW:
            self.add(chunk, 1)
        elif len(runs) <= 2 * _RUNS_MAX:
            self.add(chunk, runs, count)
        else:
            self.add(chunk, bytes(_dense_of(runs)), count)

    def add_int(self, chunk: int, bits: int) -> None:
        """Add a chunk of these bits; none: nothing."""
        if bits == _ALL:
            self.add(chunk, 1)
        elif bits:
            if (bits & ~(bits << 1)).bit_count() > _RUNS_MAX:
                self.add(chunk, bits.to_bytes(_DENSE_BYTES, "little"), bits.bit_count())
            else:
                self.add(chunk, _runs_of(bits))

    def add_union(self, chunk: int, one: Box, other: Box, one_count: int) -> None:
        """Add a chunk with the members of both boxes, of which none is full; `one_count`: members of `one`.

        A few runs are put into a copy of many: each mark of a lone message does that.
        """
        if isinstance(one, array) and isinstance(other, array):
            if len(one) < len(other):
                one, other, one_count = other, one, _count(other)
            runs = one[:]
            count = one_count + sum(_put_run(runs, *run) for run in _run_list(other))
            self.add_runs(chunk, runs, count)
        else:
            assert not isinstance(one, int)
            assert not isinstance(other, int)
            self.add_int(chunk, _int_of(one) | _int_of(other))

    def add_part(self, first: int, box: Box, begin: int, end: int) -> None:
        """Add what a span has of a range of offsets."""
        base = first << 16
        if isinstance(box, int):
            start, stop = max(begin, base), min(end, base + (box << 16))
            if start < stop:
                part = RowSet.of_runs([(start, stop)])
                self.copy(part, 0, len(part.boxes))
            return
        low, high = max(0, begin - base), min(_CHUNK, end - base)
        if low == 0 and high == _CHUNK:
            self.add(first, box)
        elif low < high:
            self.add_int(first, _int_of(box) & ((1 << high) - 1) & ~((1 << low) - 1))


def _joined(runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Join ranges that overlap or touch."""
    begin = end = -1
    for start, stop in runs:
        if start >= stop:
            continue
        assert start >= begin, "the ranges are not in order"
        if start <= end:
            end = max(end, stop)
            continue
        if begin >= 0:
            yield begin, end
        begin, end = start, stop
    if begin >= 0:
        yield begin, end


def _end_of(first: int, box: Box) -> int:
    """Return the first chunk behind a span."""
    return first + box if isinstance(box, int) else first + 1


# One chunk that is neither empty nor full.

Partial = array | bytes  # type: ignore[type-arg]


def _own_bytes(box: Box) -> int:
    if isinstance(box, int):
        return 0
    return len(box) * 2 if isinstance(box, array) else len(box)


def _has(box: Partial, low: int) -> bool:
    if isinstance(box, bytes):
        return bool(box[low >> 3] >> (low & 7) & 1)
    # Firsts and lasts rise together: behind a first and not behind its last, the place is odd; or `low` is a last.
    place = bisect_left(box, low)
    return bool(place & 1) or (place < len(box) and box[place] == low)


def _first_of(box: Partial) -> int:
    found = box[0] if isinstance(box, array) else _next_member(box, 0)
    assert found is not None
    return int(found)


def _last_of(box: Partial) -> int:
    return int(box[-1]) if isinstance(box, array) else _int_of(box).bit_length() - 1


def _next_member(box: Partial, low: int) -> int | None:
    """Return the first member from `low` on; None if there is none in the chunk."""
    if isinstance(box, bytes):
        rest = _int_of(box) >> low
        return low + (rest & -rest).bit_length() - 1 if rest else None
    if _has(box, low):
        return low
    place = bisect_left(box, low)
    return int(box[place]) if place < len(box) else None


def _next_absent(box: Partial, low: int) -> int:
    """Return the first place from `low` on that is no member; the end of the chunk if there is none."""
    if isinstance(box, bytes):
        rest = ~(_int_of(box) >> low)
        return low + (rest & -rest).bit_length() - 1
    if not _has(box, low):
        return low
    # Its run's last is the next odd place at or behind it.
    return int(box[bisect_left(box, low) | 1]) + 1


def _ones_below(bits: int, end: int) -> int:
    return (bits & ((1 << end) - 1)).bit_count()


def _members_below(runs: array[int], end: int) -> int:
    """Return the number of members before `end`. No bitmap is made: counting is done for each segment of a log."""
    place = bisect_left(runs, end)
    found = sum(runs[1:place:2]) - sum(runs[: place & ~1 : 2]) + (place >> 1)
    return found + end - runs[place - 1] if place & 1 else found


def _put_run(runs: array[int], first: int, last: int) -> int:
    """Add the members from `first` to `last`; return how many are new."""
    start = bisect_left(runs, first - 1) & ~1  # the first run that ends at `first` - 1 or behind it
    stop = (bisect_right(runs, last + 1) + 1) & ~1  # the first one that begins behind `last` + 1
    if start == stop:
        runs[start:stop] = array("H", (first, last))
        return last - first + 1
    joined = runs[start:stop]
    low, high = min(first, int(joined[0])), max(last, int(joined[-1]))
    runs[start:stop] = array("H", (low, high))
    return high - low + 1 - _count(joined)


def _count(box: Partial) -> int:
    if isinstance(box, bytes):
        return _int_of(box).bit_count()
    return int(sum(box[1::2]) - sum(box[::2]) + len(box) // 2)


def _int_of(box: Partial) -> int:
    """Return a number whose bit i says if i is a member."""
    if isinstance(box, array) and len(box) == 2:  # of a lone message: a bitmap takes longer
        first, last = int(box[0]), int(box[1])
        return ((1 << (last - first + 1)) - 1) << first
    return int.from_bytes(box if isinstance(box, bytes) else _dense_of(box), "little")


def _dense_of(runs: Sequence[int]) -> bytearray:
    bits = bytearray(_DENSE_BYTES)
    for first, last in zip(runs[::2], runs[1::2], strict=True):
        begin, end = first >> 3, last >> 3
        head, tail = 0xFF << (first & 7) & 0xFF, 0xFF >> (7 - (last & 7))
        if begin == end:
            bits[begin] |= head & tail
            continue
        bits[begin] |= head
        bits[begin + 1 : end] = b"\xff" * (end - begin - 1)
        bits[end] |= tail
    return bits


def _runs_of(bits: int) -> array[int]:
    """Return the runs of a number's bits."""
    text = f"{bits:b}"[::-1]
    runs = array("H")
    place = text.find("1")
    while place >= 0:
        end = text.find("0", place)
        runs.extend((place, (len(text) if end < 0 else end) - 1))
        place = text.find("1", end) if end >= 0 else -1
    return runs


def _run_list(box: Partial) -> list[tuple[int, int]]:
    """Return first and last of each run."""
    runs = _runs_of(_int_of(box)) if isinstance(box, bytes) else box
    return list(zip(runs[::2], runs[1::2], strict=True))


# Bytes.


def varint(number: int) -> bytes:
    """Encode a number as LEB128."""
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _head(spans: int) -> bytes:
    return bytes((VERSION,)) + varint(spans)


def _encoded(found: RowSet, start: int, stop: int) -> Iterator[bytes]:
    """Yield the bytes of some spans, one at a time."""
    end = 0
    for first, box in zip(found.firsts[start:stop], found.boxes[start:stop], strict=True):
        form = _FULL if isinstance(box, int) else _RUNS if isinstance(box, array) else _DENSE
        tag = varint((first - end) << 2 | form)
        end = _end_of(first, box)
        if isinstance(box, int):
            yield tag + varint(box - 1)
        elif isinstance(box, bytes):
            yield tag + box
        else:
            parts = [tag, varint(len(box) // 2 - 1)]
            behind = 0
            for low, high in zip(box[::2], box[1::2], strict=True):
                parts += (varint(low - behind), varint(high - low))
                behind = high + 2  # there is a gap of at least one
            yield b"".join(parts)


class Reader:
    """Reads numbers and bytes from the front of `data`. CorruptionError names the position."""

    def __init__(self, data: bytes, what: str) -> None:
        self.data = data
        self.position = 0
        self._what = what

    def wrong(self, expected: str, found: str) -> CorruptionError:
        """Return the error for what was just read."""
        return CorruptionError("", self.position, expected, found)

    def byte(self) -> int:
        """Read one byte."""
        if self.position >= len(self.data):
            raise self.wrong(self._what, "the end of the bytes")
        self.position += 1
        return self.data[self.position - 1]

    def take(self, length: int) -> bytes:
        """Read that many bytes."""
        if length > len(self.data) - self.position:
            raise self.wrong(f"{length} bytes", f"{len(self.data) - self.position}")
        self.position += length
        return self.data[self.position - length : self.position]

    def number(self, most: int) -> int:
        """Read a varint in its shortest form, of at most that value."""
        number = shift = 0
        while (byte := self.byte()) & 0x80 and shift < 63:
            number |= (byte & 0x7F) << shift
            shift += 7
        number |= byte << shift
        if number > most or (shift and not byte):
            raise self.wrong(f"a number up to {most}, in its shortest form", str(number))
        return number

    def text(self, bytes_max: int) -> str:
        """Read UTF-8 with its length before it."""
        data = self.take(self.number(bytes_max))
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.wrong("UTF-8", "other bytes") from None

    def finish(self) -> None:
        """Raise CorruptionError if bytes are left."""
        if self.position != len(self.data):
            raise self.wrong("the end", f"{len(self.data) - self.position} bytes more")


class _SpanReader(Reader):
    """Reads the byte form of a set."""

    def spans(self, count: int) -> RowSet:
        spans = _Spans()
        end = 0
        was_full = False
        for _ in range(count):
            tag = self.number(_CHUNKS_MAX << 2 | 3)
            first, form = end + (tag >> 2), tag & 3
            if first >= _CHUNKS_MAX:
                raise self.wrong("offsets below 2^63", f"chunk {first}")
            if form == _FULL:
                box: Box = self.number(_CHUNKS_MAX - 1 - first) + 1
                if was_full and first == end:
                    raise self.wrong("full chunks in one span", "two spans")
                spans.add(first, box)
            elif form == _RUNS:
                spans.add(first, box := self._runs())
            elif form == _DENSE:
                spans.add(first, box := self._dense())
            else:
                raise self.wrong("a form of span", str(form))
            was_full = form == _FULL
            end = _end_of(first, box)
        found = spans.finish()
        if found.end > OFFSET_MAX:
            raise self.wrong("offsets below 2^63 - 1", str(found.end - 1))
        return found

    def _runs(self) -> array[int]:
        runs = array("H")
        behind = 0
        for _ in range(self.number(_RUNS_MAX - 1) + 1):
            first = behind + self.number(_LOW)
            last = first + self.number(_LOW)
            if last > _LOW:
                raise self.wrong("a run within its chunk", f"{first} to {last}")
            runs.extend((first, last))
            behind = last + 2
        if runs[0] == 0 and runs[1] == _LOW:
            raise self.wrong("a chunk that is not full", "a full one")
        return runs

    def _dense(self) -> bytes:
        box = self.take(_DENSE_BYTES)
        bits = int.from_bytes(box, "little")
        if (bits & ~(bits << 1)).bit_count() <= _RUNS_MAX:
            raise self.wrong(f"{_DENSE_BYTES} bytes of more than {_RUNS_MAX} runs", "bytes of fewer")
        return box
