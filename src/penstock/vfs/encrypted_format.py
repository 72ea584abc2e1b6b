"""The bytes of an encrypted file: two copies of a header with the file's wrapped key, then blocks of records.

Rules: a file has a random key of its own, which a master key wraps; nothing else is encrypted with it. Each record has
a random nonce of 96 bits, and is bound to the file and to where its plain bytes lie: a record in another place, or in
another file, does not open. Records are only added; a cut is a record too.

    file     slot | zeros up to 4,096 | slot | zeros up to 8,192 | block | block | …      little-endian
    slot     "PNSENC" | u8 version = 1 | u8 algorithm = 1 | u32 sequence | u8 length of the key id | key id, 64 bytes |
             file id, 16 bytes | nonce, 12 bytes | wrapped key and tag, 48 bytes | u32 CRC-32C of all that
    block    u32 CRC-32C of file id, number of the block and begin | u64 begin | records; 65,536 bytes, the last fewer
    record   u32 length | u32 begin, from that of the block | nonce, 12 bytes | ciphertext | tag, 16 bytes

The wrapped key is bound to all of its slot that comes before it. A record is bound to the file id and the u64 position
of its first plain byte. No record lies across two blocks: what does not fit goes on in the next one, and fewer than 37
bytes at the end of a block are left as zeros.

Theory: plain position → place in the file takes no table. Blocks lie at multiples of their size, and each says at which
plain byte it begins, so the block of a position is found by bisection, and the record within it by going along at most
64 KiB. To open a file of a million records is to read its last block.

A record that begins before the end of the one before it gives up what lies behind that: so a file is cut in the middle
of a record without writing over anything, which a power loss could leave half done. That counts only if it opens. So
that damage to it does not bring back what was cut off, what comes next goes into a new block, some KiB behind it at the
least, which begins at the same plain byte: a block gives up what those before it have from there on.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.hot.crc import crc32c
from penstock.vfs import Buffer
from penstock.vfs.keys import ENCRYPTED_BEGIN, KEY_BYTES, EncryptionKeys, KeyMissingError, NoHeaderError

SLOT_STEP_BYTES = 4_096  # so that what tears one slot leaves the other
SLOTS = 2
AREA_BYTES = SLOTS * SLOT_STEP_BYTES
BLOCK_BYTES = 65_536
BLOCK_HEADER_BYTES = 12
RECORD_HEADER_BYTES = 20
TAG_BYTES = 16
OVERHEAD_BYTES = RECORD_HEADER_BYTES + TAG_BYTES
NONCE_BYTES = 12
FILE_ID_BYTES = 16
PLAIN_BYTES_MAX = BLOCK_BYTES - BLOCK_HEADER_BYTES - OVERHEAD_BYTES  # in one block

_MAGIC = ENCRYPTED_BEGIN
_VERSION = 1
_AES_256_GCM = 1
_BOUND = struct.Struct("<6sBBIB64s16s")
_WRAPPED = struct.Struct("<12s48s")
_SLOT_BYTES = _BOUND.size + _WRAPPED.size + 4
_BLOCK = struct.Struct("<IQ")
_BLOCK_CRC_OF = struct.Struct("<16sQQ")
_RECORD = struct.Struct("<II12s")
_POSITION = struct.Struct("<Q")
_NO_RECORD = bytes(RECORD_HEADER_BYTES)
_U32 = struct.Struct("<I")


class Slot(NamedTuple):
    """One copy of a header."""

    sequence: int  # how often the key was wrapped before
    key_id: str
    file_id: bytes
    nonce: bytes
    wrapped: bytes


class Opener(NamedTuple):
    """What opens the records of one file, and makes new ones."""

    file_id: bytes
    data_key: bytes
    cipher: AESGCM

    def __repr__(self) -> str:
        return f"Opener({self.file_id.hex()})"  # the key is shown nowhere

    def seal(self, position: int, begin: int, nonce: bytes, plain: Buffer) -> tuple[bytes, bytes]:
        """A record of plain bytes from `position` on, which is `begin` from that of its block: header, and the rest."""
        sealed = self.cipher.encrypt(nonce, plain, self.file_id + _POSITION.pack(position))
        return _RECORD.pack(len(plain), begin, nonce), sealed

    def open(self, position: int, nonce: bytes, sealed: Buffer) -> bytes | None:
        """The plain bytes of a record that begins there; None: it is not what was written there."""
        try:
            return self.cipher.decrypt(nonce, sealed, self.file_id + _POSITION.pack(position))
        except InvalidTag:
            return None

    def block_header(self, number: int, begin: int) -> bytes:
        """Of the block of that number, which begins with that plain byte."""
        return _BLOCK.pack(crc32c(_BLOCK_CRC_OF.pack(self.file_id, number, begin)), begin)

    def begin_of(self, number: int, header: Buffer) -> int | None:
        """With which plain byte the block of that number begins; None: its header is not whole."""
        if len(header) < BLOCK_HEADER_BYTES:
            return None
        crc, begin = _BLOCK.unpack_from(header)
        if begin > number * BLOCK_BYTES:  # more than can lie before it, be it zeros for what a crash has left
            return None
        return int(begin) if crc == crc32c(_BLOCK_CRC_OF.pack(self.file_id, number, begin)) else None


# Headers


def slots_in(area: bytes, path: str) -> list[Slot]:
    """The whole copies of the header in the first bytes of a file, the newest first; KeyMissingError if this version
    does not know how it is encrypted.
    """
    found = []
    for number in range(SLOTS):
        data = area[number * SLOT_STEP_BYTES :][:_SLOT_BYTES]
        if len(data) < _SLOT_BYTES or not data.startswith(_MAGIC):
            continue
        if _U32.unpack(data[-4:])[0] != crc32c(data[:-4]):
            continue
        _, version, algorithm, sequence, length, key_id, file_id = _BOUND.unpack_from(data)
        if (version, algorithm) != (_VERSION, _AES_256_GCM):
            text = f"it is encrypted in format {version}, algorithm {algorithm}, which this version does not know"
            raise KeyMissingError(text, path)
        nonce, wrapped = _WRAPPED.unpack_from(data, _BOUND.size)
        found.append(Slot(sequence, key_id[:length].decode("ascii", "replace"), file_id, nonce, wrapped))
    return sorted(found, key=lambda slot: -slot.sequence)


def check_left(area: bytes, path: str) -> None:
    """NoHeaderError, unless a crash can have left these first bytes of a file without a whole copy of its header.

    It leaves zeros, or the begin of a copy: each lies in one sector. Whatever else is there, it is not ours to write
    over.
    """
    copies = [area[number * SLOT_STEP_BYTES :][:_SLOT_BYTES] for number in range(SLOTS)]
    if all(map(_is_left, copies)):
        return
    if any(data.startswith(_MAGIC) for data in copies):
        raise NoHeaderError("it is encrypted, and both copies of its header are damaged", path, is_encrypted=True)
    raise NoHeaderError("it is not encrypted, and its stream is", path)


def _is_left(data: bytes) -> bool:
    if len(data) == _SLOT_BYTES and any(data[-_U32.size :]):
        return False  # it was written to its end, and is another than that
    begin = data.rstrip(b"\0")[: len(_MAGIC)]
    return begin == _MAGIC[: len(begin)]


def opener_of(slots: list[Slot], keys: EncryptionKeys, path: str) -> Opener:
    """What opens the file with these copies of its header; KeyMissingError."""
    refusal: KeyMissingError | None = None
    for slot in slots:
        try:
            return _unwrapped(slot, keys, path)
        except KeyMissingError as error:
            refusal = refusal or error
    assert refusal is not None, "no copy"
    raise refusal


def _unwrapped(slot: Slot, keys: EncryptionKeys, path: str) -> Opener:
    master = AESGCM(keys.key(slot.key_id, path))
    try:
        data_key = master.decrypt(slot.nonce, slot.wrapped, _bound(slot.sequence, slot.key_id, slot.file_id))
    except InvalidTag:
        text = f"the key {slot.key_id!r} that is here is not the one of that id with which it is encrypted"
        raise KeyMissingError(text, path, slot.key_id, is_other=True) from None
    return Opener(slot.file_id, data_key, AESGCM(data_key))


def new_opener(random: Callable[[int], bytes]) -> Opener:
    """With a new key, for a new file."""
    data_key = random(KEY_BYTES)
    return Opener(random(FILE_ID_BYTES), data_key, AESGCM(data_key))


def packed_slot(opener: Opener, sequence: int, keys: EncryptionKeys, random: Callable[[int], bytes]) -> bytes:
    """A copy of the header, with the file's key wrapped by the current master key, filled up with zeros."""
    bound = _bound(sequence, keys.current_id, opener.file_id)
    nonce = random(NONCE_BYTES)
    wrapped = AESGCM(keys.key(keys.current_id, "")).encrypt(nonce, opener.data_key, bound)
    slot = bound + _WRAPPED.pack(nonce, wrapped)
    return (slot + _U32.pack(crc32c(slot))).ljust(SLOT_STEP_BYTES, b"\0")


def _bound(sequence: int, key_id: str, file_id: bytes) -> bytes:
    return _BOUND.pack(_MAGIC, _VERSION, _AES_256_GCM, sequence, len(key_id), key_id.encode(), file_id)


# Blocks


class Record(NamedTuple):
    """A record of a block. Plain positions count from that of the block, `place` from where the block lies."""

    begin: int
    end: int  # of what counts of it
    whole_end: int  # of what was written
    place: int

    @property
    def place_end(self) -> int:
        """Where the next one lies."""
        return self.place + OVERHEAD_BYTES + self.whole_end - self.begin


class Walked(NamedTuple):
    """The records of a block, as far as they follow each other."""

    records: list[Record]
    end: int  # of the plain bytes, from the begin of the block
    place: int  # behind the last record

    @property
    def ends_with_cut(self) -> bool:
        """Whether the last record says that the file was cut there: it holds nothing."""
        return bool(self.records) and self.records[-1].whole_end == self.records[-1].begin


def walk(opener: Opener, block_begin: int, block: memoryview) -> Walked:
    """The records of a block. Whether they open is for whoever reads them to see."""
    records: list[Record] = []
    place, end, size = BLOCK_HEADER_BYTES, 0, len(block)
    unpack = _RECORD.unpack_from
    while place + OVERHEAD_BYTES <= size:
        length, begin, nonce = unpack(block, place)
        place_end = place + OVERHEAD_BYTES + length
        if place_end > size or begin > end:
            break  # torn, or damaged: what comes behind it cannot be found
        if begin < end or not length:
            if block[place : place + RECORD_HEADER_BYTES] == _NO_RECORD:
                break
            sealed = block[place + RECORD_HEADER_BYTES : place_end]
            if opener.open(block_begin + begin, nonce, sealed) is None:
                break
            records = [one._replace(end=min(one.end, begin)) for one in records if one.begin < begin]
        records.append(Record(begin, begin + length, begin + length, place))
        end = begin + length
        place = place_end
    return Walked(records, end, place)


def opened(opener: Opener, block_begin: int, block: memoryview, record: Record) -> bytes | None:
    """The plain bytes of a record, those that were cut off too; None: it does not open."""
    nonce = bytes(block[record.place + RECORD_HEADER_BYTES - NONCE_BYTES : record.place + RECORD_HEADER_BYTES])
    return opener.open(block_begin + record.begin, nonce, block[record.place + RECORD_HEADER_BYTES : record.place_end])
