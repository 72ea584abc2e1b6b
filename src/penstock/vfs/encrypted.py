"""A Vfs that encrypts its files over another one: callers see plain bytes at plain positions.

Rules: each file that `is_secret` selects is encrypted from its first byte; a plain file in its place is never read,
written or truncated. A record that the file's key does not decrypt reads as zeros: no batch is valid there, so the log
handles it like other corruption, batch by batch. Remains of a crash behind the last complete record read as zeros at
the end of the file. A missing key raises KeyMissingError at open. Truncated bytes never reappear, even if one place of
the file is corrupted: a truncation is written twice, as a record and as the begin of a block.

Names, lengths and times of files stay plain, and so do files that `is_secret` does not select.

| a file                                | is seen as                                               |
|---------------------------------------|----------------------------------------------------------|
| new, or truncated to 0 by a crash     | empty; its header is written before its first bytes      |
| with a valid copy of its header       | the content of its records                               |
| with remains of a header after a crash| zeros: nothing of it was ever durable                    |
| anything else: plain, or corrupt      | a NoHeaderError at open; it stays unchanged              |

Tools that do not know the streams of the files (`may_be_plain`) see unencrypted files as they are.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from penstock.vfs import Buffer, File, Folder, Vfs
from penstock.vfs import encrypted_format as form
from penstock.vfs.encrypted_blocks import NEW, Blocks, Tail, begin_block, place_of, read_block, tail_of
from penstock.vfs.encrypted_format import AREA_BYTES, BLOCK_BYTES, BLOCK_HEADER_BYTES, OVERHEAD_BYTES
from penstock.vfs.keys import EncryptionKeys, NoHeaderError

_ZEROS_AT_ONCE = 1 << 20
_HEADER_READ_BYTES = form.SLOT_STEP_BYTES + 512


class EncryptedVfs:
    """`inner`, with the files that `is_secret` selects encrypted. `random` returns bytes for keys and nonces.

    `may_be_plain`: unencrypted files are shown as they are.
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
        """Open a file; see Vfs. KeyMissingError if the file's key is missing; NoHeaderError."""
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
        return self._inner.open_folder(path)

    def list(self, path: str) -> Sequence[str]:
        return self._inner.list(path)

    def rename(self, old: str, new: str) -> None:
        self._inner.rename(old, new)

    def remove(self, path: str) -> None:
        self._inner.remove(path)

    def sync_dir(self, path: str) -> None:
        self._inner.sync_dir(path)

    def together(self, *syncs: Callable[[], None]) -> None:
        self._inner.together(*syncs)

    def cached(self, *, reads_max: int, bytes_max: int) -> None:
        return None


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
        self._tail: Tail | None = None  # set once this file is written
        self._look()

    def _look(self) -> None:
        """Read the header if there is one by now. NoHeaderError if the file has foreign content."""
        area = self._inner.read_at(0, _HEADER_READ_BYTES)
        slots = form.slots_in(area, self.path)
        if slots:
            self._opener = form.opener_of(slots, self._vfs.keys, self.path)
        else:
            form.check_left(area, self.path)
        self._header_is_lost = bool(area) and not slots

    def _known(self) -> form.Opener | None:
        """Return what decrypts the file's records; None: it has no header."""
        if self._opener is None:
            self._look()  # the file was new when it was opened
        return self._opener

    # Reading

    def read_at(self, position: int, length: int) -> bytes:
        if position < 0 or length < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self.path)
        opener = self._known()
        if opener is None:
            return bytes(max(0, min(length, self.size() - position)))
        end = position + length
        blocks = Blocks(opener, self._inner, 1 + length // form.PLAIN_BYTES_MAX)
        number = blocks.find(position)
        if number is None:
            return bytes(max(0, min(end, blocks.size - AREA_BYTES) - position))
        parts: list[bytes] = []
        at = position
        while number is not None and at < end:
            block_end, following = blocks.span(number)
            begin = blocks.begin(number)
            assert begin is not None
            if at < begin:  # the first blocks are corrupt
                parts.append(bytes(min(begin, end) - at))
                at = min(begin, end)
            if at < min(block_end, end):
                parts += read_block(opener, begin, blocks.data(number), at, min(block_end, end))
                at = min(block_end, end)
            number = following
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def size(self) -> int:
        """Length in plain bytes."""
        return self._known_tail().end

    def _known_tail(self) -> Tail:
        """Return the end of the file. For a writer it is known; otherwise the file may have grown."""
        if self._tail is not None:
            return self._tail
        opener = self._known()
        if opener is None:
            return Tail(max(0, self._inner.size() - AREA_BYTES), AREA_BYTES, 0, -1)
        return tail_of(opener, self._inner)

    # Writing

    def write_at(self, position: int, *buffers: Buffer) -> None:
        """Write all buffers one after the other from `position`, or raise OSError (a part may then be written).

        Overwriting bytes with equal bytes is always crash-safe. Other bytes are not: a crash may lose what lies behind
        them. (A log only appends.)
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

    def _writable(self) -> Tail:
        """Return the end of the file, and remember it from now on."""
        if self._tail is None:
            self._tail = self._known_tail()
        return self._tail

    def _begin(self) -> form.Opener:
        """Write the header of a new file, or replace remains of one after a crash."""
        self._drop_header()
        opener = form.new_opener(self._vfs.random)
        slots = [form.packed_slot(opener, 0, self._vfs.keys, self._vfs.random) for _ in range(form.SLOTS)]
        self._inner.write_at(0, b"".join(slots))
        self._opener = opener
        self._tail = NEW
        return opener

    def _drop_header(self) -> None:
        """Remove remains of a header before another is written; otherwise a crash could leave a mixture of both."""
        if self._header_is_lost:
            self._inner.truncate(0)
            self._inner.sync()
            self._header_is_lost = False

    def _write_header_again(self) -> None:
        """Write the header over itself: a failed sync may have lost it, and later ones skip what is not written."""
        self._inner.write_at(0, self._inner.read_at(0, AREA_BYTES))

    def _add(self, tail: Tail, data: Buffer) -> None:
        """Append behind the last record."""
        opener = self._known()
        if opener is None:
            opener = self._begin()
            if tail.end:  # the header of the file was lost: zeros, as it was seen, and as a crash would leave it
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

    def _put(self, opener: form.Opener, tail: Tail, data: memoryview, pieces: list[Buffer]) -> tuple[Tail, int]:
        """Append the next record to `pieces`; return the new end of the file and the number of bytes taken."""
        if tail.block_begin < 0:
            tail = begin_block(opener, tail, pieces)
        elif place_of(tail.block + 1) - tail.place < OVERHEAD_BYTES + min(1, len(data)):
            tail = begin_block(opener, tail._replace(block=tail.block + 1), pieces)
        end, place, number, begin = tail
        taken = min(len(data), place_of(number + 1) - place - OVERHEAD_BYTES)
        pieces += opener.seal(end, end - begin, self._vfs.random(form.NONCE_BYTES), data[:taken])
        return Tail(end + taken, place + OVERHEAD_BYTES + taken, number, begin), taken

    def _write_over(self, tail: Tail, position: int, data: bytes) -> None:
        end = position + len(data)
        opener = self._known()
        if end <= tail.end and self.read_at(position, len(data)) == data:
            if opener is None:
                return  # the content is unreadable in any case
            if position == 0:
                self._write_header_again()
            blocks = Blocks(opener, self._inner, 1)
            first, last = blocks.find(position) or 0, blocks.find(max(position, end - 1))
            stop = blocks.size if last is None or end == tail.end else place_of(last + 1)
            for place in range(place_of(first), stop, BLOCK_BYTES):
                self._inner.write_at(place, self._inner.read_at(place, min(BLOCK_BYTES, stop - place)))
            return
        behind = self.read_at(end, max(0, tail.end - end))
        self.truncate(position)
        self._add(self._writable(), data + behind)

    def truncate(self, length: int) -> None:
        """Truncate (or extend with zeros) to `length` bytes."""
        tail = self._writable()
        opener = self._known()
        if length == 0:
            # The key stays: a crash could lose another header.
            self._drop_header()
            stays = 0
            if opener is not None:
                self._write_header_again()
                stays = AREA_BYTES
            if self._inner.size() > stays:  # otherwise it is new, and no sync is needed
                self._drop(stays)
            self._tail = NEW
        elif length > tail.end:
            self._extend(length)
        elif opener is None:
            self._inner.truncate(AREA_BYTES + length)
            self._tail = tail._replace(end=length)
        elif length == tail.end:
            self._inner.truncate(tail.place)  # remains of a failed write
        else:
            self._cut(opener, length)

    def _cut(self, opener: form.Opener, length: int) -> None:
        blocks = Blocks(opener, self._inner, 1)
        number = blocks.find(length - 1)
        begin = None if number is None else blocks.begin(number)
        tail, told, is_mid = NEW, None, False
        if number is not None and begin is not None and begin < length:
            walked = form.walk(opener, begin, blocks.data(number))
            kept = [one for one in walked.records if begin + one.begin < length]
            tail = Tail(begin, place_of(number) + BLOCK_HEADER_BYTES, number, begin)
            if kept:
                end = min(begin + kept[-1].end, length)
                is_mid = begin + kept[-1].whole_end > end
                # An earlier truncation of the same record stays until the new one is on disk.
                place = walked.place if is_mid else kept[-1].place_end
                tail = Tail(end, place_of(number) + place, number, begin)
                told = blocks.cut_by(number, begin + walked.end) if is_mid else None
        if told is not None:
            tail = self._cut_deeper(opener, tail, told)
        else:
            self._drop(tail.place)
        self._tail = self._say_cut(opener, tail) if is_mid else tail
        self._extend(length)

    def _drop(self, place: int) -> None:
        """Remove everything behind `place` durably; otherwise a crash could mix old blocks with the new ones."""
        self._tail = None  # if the sync fails, the next writer determines the end
        self._inner.truncate(place)
        self._inner.sync()

    def _cut_deeper(self, opener: form.Opener, tail: Tail, block: int) -> Tail:
        """Truncate a record again whose earlier truncation is recorded only by this block's header: the header is
        overwritten in place, within one sector, so that one of the two always holds.
        """
        self._drop(place_of(block) + BLOCK_HEADER_BYTES)
        self._inner.write_at(place_of(block), opener.block_header(block, tail.end))
        self._inner.sync()
        return Tail(tail.end, place_of(block) + BLOCK_HEADER_BYTES, block, tail.end)

    def _say_cut(self, opener: form.Opener, tail: Tail) -> Tail:
        """Record the truncation as a record, and as the begin of a block so far behind it that one local corruption
        cannot destroy both. Return the new end of the file.
        """
        pieces: list[Buffer] = []
        now, _ = self._put(opener, tail, memoryview(b""), pieces)
        record_place = now.place - OVERHEAD_BYTES
        while now.place - record_place < form.SLOT_STEP_BYTES:
            now = begin_block(opener, now._replace(block=now.block + 1), pieces)
        self._inner.write_at(tail.place, *pieces)
        return now

    def _extend(self, length: int) -> None:
        while (tail := self._writable()).end < length:
            self._add(tail, bytes(min(_ZEROS_AT_ONCE, length - tail.end)))

    # Other operations

    def sync(self) -> None:
        self._inner.sync()

    def has_its_name(self) -> bool:
        return self._inner.has_its_name()

    def fileno(self) -> int | None:
        """None: the descriptor gives encrypted bytes."""
        return None

    def sync_fileno(self) -> int | None:
        return self._inner.sync_fileno()

    @property
    def takes_work(self) -> bool:
        """True: reads decrypt."""
        return True

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._inner.close()
