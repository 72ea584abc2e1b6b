"""A Vfs whose files are encrypted, over another one: whoever uses it sees plain bytes at plain positions.

Rules: each file that `is_secret` names is encrypted from its first byte; one that is plain is never read, written or
cut. What does not open with the file's own key reads as zeros: nothing of a log is valid there, so whatever the log
does about damage it does about this, from batch to batch. What a crash leaves behind the last whole record is zeros at
the end of the file. A key that is not here is a KeyMissingError at the opening. What was cut off stays gone, whatever
single place of the file is damaged: a cut is written twice, as a record and as the begin of a block.

Names, lengths and times of files are as plain as ever, and so are files that `is_secret` does not name.

| a file                                | is seen as                                               |
|---------------------------------------|----------------------------------------------------------|
| new, or cut to nothing by a crash     | empty; its header is written before its first bytes      |
| with a whole copy of its header       | what its records hold                                    |
| with what a crash leaves of a header  | zeros: nothing of it was ever on the disk for good       |
| anything else: plain, or damaged      | a NoHeaderError at the opening; it stays as it is        |

Who looks at files and does not know of which streams they are (`may_be_plain`) sees what is no encrypted file as it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.vfs import Buffer, File, Folder, Vfs
from penstock.vfs import encrypted_format as form
from penstock.vfs.encrypted_format import AREA_BYTES, BLOCK_BYTES, BLOCK_HEADER_BYTES, OVERHEAD_BYTES
from penstock.vfs.keys import EncryptionKeys, NoHeaderError

_BLOCKS_AT_ONCE = 16  # read and opened, so that a large read holds no more
_ZEROS_AT_ONCE = 1 << 20
_HEADER_READ_BYTES = form.SLOT_STEP_BYTES + 512


class EncryptedVfs:
    """`inner`, with the files that `is_secret` names encrypted. `random` gives bytes for keys and nonces.

    `may_be_plain`: those that are not are seen as they are.
    """

    def __init__(
        self,
        inner: Vfs,
        keys: EncryptionKeys,
        is_secret: Callable[[str], bool],
        random: Callable[[int], bytes] = os.urandom,
        *,
        may_be_plain: bool = False,
    ) -> None:
        self.keys = keys
        self.random = random
        self._may_be_plain = may_be_plain
        self._inner = inner
        self._is_secret = is_secret

    def open(self, path: str, *, create: bool = False, make_folders: bool = True, read_only: bool = False) -> File:
        """Open a file; see Vfs. KeyMissingError, where that of the file is not here; NoHeaderError."""
        inner = self._inner.open(path, create=create, make_folders=make_folders, read_only=read_only)
        if not self._is_secret(path):
            return inner
        try:
            return EncryptedFile(self, inner)
        except NoHeaderError as error:
            if self._may_be_plain and not error.is_encrypted:
                return inner
            inner.close()
            raise
        except BaseException:
            inner.close()
            raise

    def open_folder(self, path: str) -> Folder:
        """Open a folder that is there."""
        return self._inner.open_folder(path)

    def list(self, path: str) -> Sequence[str]:
        """Names in a folder; see Vfs."""
        return self._inner.list(path)

    def rename(self, old: str, new: str) -> None:
        """Move a file or folder; see Vfs."""
        self._inner.rename(old, new)

    def remove(self, path: str) -> None:
        """Delete a file or folder; see Vfs."""
        self._inner.remove(path)

    def sync_dir(self, path: str) -> None:
        """Make names durable; see Vfs."""
        self._inner.sync_dir(path)


class _Tail(NamedTuple):
    """Where the next record goes."""

    end: int  # plain bytes of the file
    place: int  # in the file
    block: int  # the number of the block there
    block_begin: int  # its first plain byte; -1: it has no header yet, and what lies before `place` is not to be used


_NEW = _Tail(0, AREA_BYTES, 0, -1)


class EncryptedFile:
    """One open file of an EncryptedVfs. One writer at a time, as for every file."""

    __slots__ = ("_header_is_lost", "_inner", "_opener", "_tail", "_vfs", "path")

    def __init__(self, vfs: EncryptedVfs, inner: File) -> None:
        """KeyMissingError, NoHeaderError."""
        self.path = inner.path
        self._vfs = vfs
        self._inner = inner
        self._opener: form.Opener | None = None
        self._header_is_lost = False
        self._tail: _Tail | None = None  # once this file is written
        self._look()

    def _look(self) -> None:
        """Read the header, if there is one by now. NoHeaderError: there is what we did not write."""
        area = self._inner.read_at(0, _HEADER_READ_BYTES)
        slots = form.slots_in(area, self.path)
        if slots:
            self._opener = form.opener_of(slots, self._vfs.keys, self.path)
        else:
            form.check_left(area, self.path)
        self._header_is_lost = bool(area) and not slots

    def _known(self) -> form.Opener | None:
        """What opens its records; None: it has no header."""
        if self._opener is None:
            self._look()  # it was new when it was opened
        return self._opener

    # Reading

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; fewer only at the end of the file."""
        if position < 0 or length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        opener = self._known()
        if opener is None:
            return bytes(max(0, min(length, self.size() - position)))
        end = position + length
        blocks = _Blocks(opener, self._inner, 1 + length // form.PLAIN_BYTES_MAX)
        number = blocks.find(position)
        if number is None:
            return bytes(max(0, min(end, blocks.size - AREA_BYTES) - position))
        parts: list[bytes] = []
        at = position
        while number is not None and at < end:
            block_end, following = blocks.span(number)
            begin = blocks.begin(number)
            assert begin is not None
            if at < begin:  # the first blocks are damaged
                parts.append(bytes(min(begin, end) - at))
                at = min(begin, end)
            if at < min(block_end, end):
                parts += _read_block(opener, begin, blocks.data(number), at, min(block_end, end))
                at = min(block_end, end)
            number = following
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        """Length in plain bytes."""
        return self._known_tail().end

    def _known_tail(self) -> _Tail:
        """Where the file ends. Whoever writes it knows; for others it may have grown."""
        if self._tail is not None:
            return self._tail
        opener = self._known()
        if opener is None:
            return _Tail(max(0, self._inner.size() - AREA_BYTES), AREA_BYTES, 0, -1)
        return _tail(opener, self._inner)

    # Writing

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Write all buffers one after the other from `position`, or raise OSError (a part may then be written).

        What lies there already may be written again, which is safe at any moment; other bytes in its place are not: a
        crash may take what lies behind them. (A log only adds.)
        """
        data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
        tail = self._writable()
        if position == tail.end:
            self._add(tail, data)
        elif position > tail.end:
            self._extend(position)
            self._add(self._writable(), data)
        elif len(data):
            self._write_over(tail, position, bytes(data))

    def _writable(self) -> _Tail:
        """Where the file ends, remembered from now on."""
        if self._tail is None:
            self._tail = self._known_tail()
        return self._tail

    def _begin(self) -> form.Opener:
        """Write the header of a new file, or of one of which a crash has left no more than a part of it."""
        self._drop_header()
        opener = form.new_opener(self._vfs.random)
        slots = [form.packed_slot(opener, 0, self._vfs.keys, self._vfs.random) for _ in range(form.SLOTS)]
        self._inner.write_at(0, b"".join(slots))
        self._opener = opener
        self._tail = _NEW
        return opener

    def _drop_header(self) -> None:
        """What a crash has left of one: before another is written, or the next crash leaves a mixture of both."""
        if self._header_is_lost:
            self._inner.truncate(0)
            self._inner.sync()
            self._header_is_lost = False

    def _add(self, tail: _Tail, data: Buffer) -> None:
        """Behind the last record."""
        opener = self._known()
        if opener is None:
            opener = self._begin()
            if tail.end:  # of a file whose header was lost: zeros, as it was seen, and as a crash would leave it
                self._extend(tail.end)
                self._inner.sync()
                tail = self._writable()
        rest = memoryview(data).cast("B")
        if not rest:
            return
        pieces: list[Buffer] = []
        now = tail
        while rest:
            now, taken = self._put(opener, now, rest, pieces)
            rest = rest[taken:]
        self._inner.write_at(tail.place, *pieces)
        self._tail = now

    def _put(self, opener: form.Opener, tail: _Tail, data: memoryview, pieces: list[Buffer]) -> tuple[_Tail, int]:
        """The next record, into `pieces`: how the file ends then, and how many of the bytes it holds."""
        if tail.block_begin < 0:
            tail = _begin_block(opener, tail, pieces)
        elif _place_of(tail.block + 1) - tail.place < OVERHEAD_BYTES + min(1, len(data)):
            tail = _begin_block(opener, tail._replace(block=tail.block + 1), pieces)
        end, place, number, begin = tail
        taken = min(len(data), _place_of(number + 1) - place - OVERHEAD_BYTES)
        pieces += opener.seal(end, end - begin, self._vfs.random(form.NONCE_BYTES), data[:taken])
        return _Tail(end + taken, place + OVERHEAD_BYTES + taken, number, begin), taken

    def _write_over(self, tail: _Tail, position: int, data: bytes) -> None:
        end = position + len(data)
        opener = self._known()
        if end <= tail.end and self.read_at(position, len(data)) == data:
            if opener is None:
                return  # nothing of it can be read, now or later
            if position == 0:  # whoever writes all of it again cannot know what a sync that failed has given up
                self._inner.write_at(0, self._inner.read_at(0, AREA_BYTES))
            blocks = _Blocks(opener, self._inner, 1)
            first, last = blocks.find(position) or 0, blocks.find(max(position, end - 1))
            stop = blocks.size if last is None or end == tail.end else _place_of(last + 1)
            for place in range(_place_of(first), stop, BLOCK_BYTES):
                self._inner.write_at(place, self._inner.read_at(place, min(BLOCK_BYTES, stop - place)))
            return
        behind = self.read_at(end, max(0, tail.end - end))
        self.truncate(position)
        self._add(self._writable(), data + behind)

    def truncate(self, length: int) -> None:
        """Cut (or extend with zeros) to `length` bytes."""
        tail = self._writable()
        opener = self._known()
        if length == 0:
            # Its key stays: a header that were written anew would be lost with a crash.
            self._drop_header()
            self._drop(0 if opener is None else AREA_BYTES)
            self._tail = _NEW
        elif length > tail.end:
            self._extend(length)
        elif opener is None:
            self._inner.truncate(AREA_BYTES + length)
            self._tail = tail._replace(end=length)
        elif length == tail.end:
            self._inner.truncate(tail.place)  # what a write has left that failed
        else:
            self._cut(opener, length)

    def _cut(self, opener: form.Opener, length: int) -> None:
        blocks = _Blocks(opener, self._inner, 1)
        number = blocks.find(length - 1)
        begin = None if number is None else blocks.begin(number)
        tail, is_mid = _NEW, False
        if number is not None and begin is not None and begin < length:
            walked = form.walk(opener, begin, blocks.data(number))
            kept = [one for one in walked.records if begin + one.begin < length]
            tail = _Tail(begin, _place_of(number) + BLOCK_HEADER_BYTES, number, begin)
            if kept:
                end = min(begin + kept[-1].end, length)
                is_mid = begin + kept[-1].whole_end > end
                # An earlier cut of the same record stays until the new one is on the disk.
                place = walked.place if is_mid else kept[-1].place_end
                tail = _Tail(end, _place_of(number) + place, number, begin)
        self._drop(tail.place)
        self._tail = tail
        if is_mid:
            self._say_cut(opener, tail)
        self._extend(length)

    def _drop(self, place: int) -> None:
        """What lies behind there, for good: else a crash leaves blocks of it among those that take their places."""
        self._tail = None  # where the sync fails, it is for the next who writes to see
        self._inner.truncate(place)
        self._inner.sync()

    def _say_cut(self, opener: form.Opener, tail: _Tail) -> None:
        """Write that the file ends there: as a record, and as the begin of a block so far behind it that what takes
        one of them leaves the other.
        """
        pieces: list[Buffer] = []
        now, _ = self._put(opener, tail, memoryview(b""), pieces)
        record_place = now.place - OVERHEAD_BYTES
        while now.place - record_place < form.SLOT_STEP_BYTES:
            now = _begin_block(opener, now._replace(block=now.block + 1), pieces)
        self._inner.write_at(tail.place, *pieces)
        self._tail = now

    def _extend(self, length: int) -> None:
        while (tail := self._writable()).end < length:
            self._add(tail, bytes(min(_ZEROS_AT_ONCE, length - tail.end)))

    # The rest

    def sync(self) -> None:
        """Return once all bytes written so far survive a power loss."""
        self._inner.sync()

    def has_its_name(self) -> bool:
        """Whether its path still leads to it."""
        return self._inner.has_its_name()

    def fileno(self) -> int | None:
        """None: what the descriptor gives is of no use to anybody else."""
        return None

    @property
    def takes_work(self) -> bool:
        """Yes: it is to be opened."""
        return True

    def close(self) -> None:
        """Give the file back. Twice is fine."""
        self._inner.close()


class _Blocks:
    """The blocks of a file as it is now; some are read at once. What was seen of it counts, whatever becomes of it."""

    __slots__ = ("_at_once", "_begins", "_data", "_file", "_first", "_opener", "count", "size")

    def __init__(self, opener: form.Opener, file: File, expected: int) -> None:
        """`expected`: how many will be read."""
        self.size = file.size()
        self.count = max(0, -(-(self.size - AREA_BYTES) // BLOCK_BYTES))
        self._opener = opener
        self._file = file
        self._at_once = min(expected, _BLOCKS_AT_ONCE)
        self._begins: dict[int, int | None] = {}
        self._first = 0
        self._data = memoryview(b"")

    def data(self, number: int) -> memoryview:
        """All of a block that there is."""
        offset = (number - self._first) * BLOCK_BYTES
        if not 0 <= offset < len(self._data) - BLOCK_HEADER_BYTES:
            self._first, offset = number, 0
            place = _place_of(number)
            # With the header of the one behind them, which says where the last of them ends.
            length = min(self._at_once * BLOCK_BYTES + BLOCK_HEADER_BYTES, self.size - place)
            self._data = memoryview(self._file.read_at(place, length))
        return self._data[offset : offset + BLOCK_BYTES]

    def begin(self, number: int) -> int | None:
        """The first plain byte of a block; None: its header is not whole."""
        if number not in self._begins:
            self._begins[number] = self._begin(number)
        return self._begins[number]

    def _begin(self, number: int) -> int | None:
        offset = (number - self._first) * BLOCK_BYTES
        if 0 <= offset <= len(self._data) - BLOCK_HEADER_BYTES:
            header: Buffer = self._data[offset : offset + BLOCK_HEADER_BYTES]
        else:
            header = self._file.read_at(_place_of(number), BLOCK_HEADER_BYTES)
        return self._opener.begin_of(number, header)

    def find(self, position: int) -> int | None:
        """The last whole block that begins at or before that plain byte, else the first whole one; None: none is."""
        low, high = 0, self.count  # the one that is looked for lies in there
        guess = min(position // form.PLAIN_BYTES_MAX, high - 1)  # where all blocks are full, it is there
        found: int | None = None
        while low < high:
            middle = guess if guess >= 0 else (low + high) // 2
            guess = -1
            number = self._whole_before(middle, low)
            if number is None:
                low = middle + 1
                continue
            begin = self.begin(number)
            assert begin is not None
            if begin <= position:
                found, low = number, middle + 1
                following = self.begin(low) if low < high else None
                if following is not None and following > position:
                    break
            else:
                high = number
        return self.following(-1)[0] if found is None else found

    def _whole_before(self, number: int, low: int) -> int | None:
        while number >= low:
            if self.begin(number) is not None:
                return number
            number -= 1
        return None

    def following(self, number: int) -> tuple[int | None, int]:
        """The next whole block behind that one, and its first plain byte."""
        for behind in range(number + 1, self.count):
            if (begin := self.begin(behind)) is not None:
                return behind, begin
        return None, 0

    def span(self, number: int) -> tuple[int, int | None]:
        """Where what belongs to a whole block ends, in plain bytes; and which one is the next."""
        following, next_begin = self.following(number)
        if following is not None:
            return next_begin, following
        begin = self.begin(number)
        assert begin is not None
        walked = form.walk(self._opener, begin, self.data(number))
        return begin + walked.end + self.size - _place_of(number) - walked.place, None


def _read_block(opener: form.Opener, begin: int, data: memoryview, at: int, end: int) -> list[bytes]:
    """Plain bytes from `at` up to `end`, as far as the block's records have them; zeros for the rest."""
    parts = []
    for record in form.walk(opener, begin, data).records:
        record_begin, record_end = begin + record.begin, min(begin + record.end, end)
        if record_begin <= at < record_end:
            plain = form.opened(opener, begin, data, record)
            if plain is None:
                plain = bytes(record.whole_end - record.begin)
            if (at, record_end) == (record_begin, begin + record.whole_end):
                parts.append(plain)
            else:
                parts.append(plain[at - record_begin : record_end - record_begin])
            at = record_end
        if at >= end:
            break
    if at < end:
        parts.append(bytes(end - at))
    return parts


def _begin_block(opener: form.Opener, tail: _Tail, pieces: list[Buffer]) -> _Tail:
    """The header of the tail's block, into `pieces`, and how the file ends then."""
    pieces.append(bytes(_place_of(tail.block) - tail.place))
    pieces.append(opener.block_header(tail.block, tail.end))
    return _Tail(tail.end, _place_of(tail.block) + BLOCK_HEADER_BYTES, tail.block, tail.end)


def _tail(opener: form.Opener, file: File) -> _Tail:
    """How a file ends."""
    blocks = _Blocks(opener, file, 1)
    number = blocks.count - 1
    while number >= 0 and (begin := blocks.begin(number)) is None:
        number -= 1
    if number < 0:
        torn = max(0, blocks.size - AREA_BYTES)
        return _NEW if not torn else _Tail(torn, blocks.size, blocks.count, -1)
    assert begin is not None
    walked = form.walk(opener, begin, blocks.data(number))
    place = _place_of(number) + walked.place
    if place == blocks.size:
        if walked.ends_with_cut:  # a crash has taken the block that was to say so, too
            return _Tail(begin + walked.end, place, number + 1, -1)
        return _Tail(begin + walked.end, place, number, begin)
    # The next record goes into a block of its own, so that its place says where it begins.
    return _Tail(begin + walked.end + blocks.size - place, blocks.size, blocks.count, -1)


def _place_of(number: int) -> int:
    return AREA_BYTES + number * BLOCK_BYTES
