"""Format of an encrypted file: two copies of a header with the file's wrapped key, then blocks of records.

Rules: a file has its own random key, which a master key wraps and which encrypts nothing else. Each record has a random
nonce of 96 bits and is bound to the file and to its plain position: a record moved to another place or another file
does not decrypt. Records are only appended; a truncation is a record, too.

    file     slot | zeros up to 4,096 | slot | zeros up to 8,192 | block | block | …      little-endian
    slot     "PNSENC" | u8 version = 1 | u8 algorithm = 1 | u32 sequence | u8 length of the key id | key id, 64 bytes |
             file id, 16 bytes | nonce, 12 bytes | wrapped key and tag, 48 bytes | u32 CRC-32C of all that
    block    u32 CRC-32C of file id, number of the block and begin | u64 begin | records; 65,536 bytes, the last fewer
    record   u32 length | u32 begin, from that of the block | nonce, 12 bytes | ciphertext | tag, 16 bytes

The wrapped key is bound to all earlier bytes of its slot. A record is bound to the file id and the u64 position of its
first plain byte. No record spans two blocks: the rest goes into the next block, and fewer than 37 bytes at the end of a
block are left as zeros.

Theory: mapping a plain position to a place in the file takes no table. Blocks lie at multiples of their size, and each
states its first plain byte, so the block of a position is found by binary search, and the record within it by a scan of
at most 64 KiB. Opening a file of a million records reads its last block.

A record that begins before the end of the previous one discards what lies behind its begin: so a file is truncated in
the middle of a record without overwriting anything, which a power loss could leave half done. This counts only if the
record decrypts. So that its corruption does not bring back truncated bytes, the next data goes into a new block, at
least some KiB behind it, that begins at the same plain byte: a block discards what earlier blocks have from there on.
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

SLOT_STEP_BYTES = 4_096  # so that a torn write of one slot leaves the other intact
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

    sequence: int  # number of earlier wraps of the key
    key_id: str
    file_id: bytes
    nonce: bytes
    wrapped: bytes


class Opener(NamedTuple):
    """Decrypts the records of one file, and encrypts new ones."""

    file_id: bytes
    data_key: bytes
    cipher: AESGCM

    def __repr__(self) -> str:
        return f"Opener({self.file_id.hex()})"  # never shows the key

    def seal(self, position: int, begin: int, nonce: bytes, plain: Buffer) -> tuple[bytes, bytes]:
        """Encrypt a record at plain `position`, `begin` bytes into its block; return its header and its ciphertext."""
        sealed = self.cipher.encrypt(nonce, plain, self.file_id + _POSITION.pack(position))
        return _RECORD.pack(len(plain), begin, nonce), sealed

    def open(self, position: int, nonce: bytes, sealed: Buffer) -> bytes | None:
        """Decrypt the record at this plain position; None: it is not what was written there."""
        try:
            return self.cipher.decrypt(nonce, sealed, self.file_id + _POSITION.pack(position))
        except InvalidTag:
            return None

    def block_header(self, number: int, begin: int) -> bytes:
        """Return the header of a block that begins with plain byte `begin`."""
        return _BLOCK.pack(crc32c(_BLOCK_CRC_OF.pack(self.file_id, number, begin)), begin)

    def begin_of(self, number: int, header: Buffer) -> int | None:
        """Return the first plain byte of a block from its header; None: the header is invalid."""
        if len(header) < BLOCK_HEADER_BYTES:
            return None
        crc, begin = _BLOCK.unpack_from(header)
        if begin > number * BLOCK_BYTES:  # impossible, even if remains of a crash count as zeros
            return None
        return int(begin) if crc == crc32c(_BLOCK_CRC_OF.pack(self.file_id, number, begin)) else None


# Headers


def slots_in(area: bytes, path: str) -> list[Slot]:
    """Return the valid copies of the header at the start of a file, the newest first; KeyMissingError if this version
    does not know the encryption format.
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
    """Raise NoHeaderError unless the first bytes of a file can be remains of a header write that a crash interrupted.

    A crash leaves zeros or the begin of a copy, since each lies in one sector. Other content is foreign and must not be
    overwritten.
    """
    copies = [area[number * SLOT_STEP_BYTES :][:_SLOT_BYTES] for number in range(SLOTS)]
    if all(map(_is_left, copies)):
        return
    if any(data.startswith(_MAGIC) for data in copies):
        raise NoHeaderError("it is encrypted, and both copies of its header are damaged", path, is_encrypted=True)
    raise NoHeaderError("it is not encrypted, and its stream is", path)


def _is_left(data: bytes) -> bool:
    if len(data) == _SLOT_BYTES and any(data[-_U32.size :]):
        return False  # it was completely written, but is invalid
    begin = data.rstrip(b"\0")[: len(_MAGIC)]
    return begin == _MAGIC[: len(begin)]


def opener_of(slots: list[Slot], keys: EncryptionKeys, path: str) -> Opener:
    """Return what decrypts the file with these headers; KeyMissingError."""
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
        text = f"it is encrypted with a key {slot.key_id!r} that differs from the key of that id here"
        raise KeyMissingError(text, path, slot.key_id, is_other=True) from None
    return Opener(slot.file_id, data_key, AESGCM(data_key))


def new_opener(random: Callable[[int], bytes]) -> Opener:
    """Return a new file id and a new key."""
    data_key = random(KEY_BYTES)
    return Opener(random(FILE_ID_BYTES), data_key, AESGCM(data_key))


def packed_slot(opener: Opener, sequence: int, keys: EncryptionKeys, random: Callable[[int], bytes]) -> bytes:
    """Return a header copy with the file's key wrapped by the current master key, padded with zeros."""
    bound = _bound(sequence, keys.current_id, opener.file_id)
    nonce = random(NONCE_BYTES)
    wrapped = AESGCM(keys.key(keys.current_id, "")).encrypt(nonce, opener.data_key, bound)
    slot = bound + _WRAPPED.pack(nonce, wrapped)
    return (slot + _U32.pack(crc32c(slot))).ljust(SLOT_STEP_BYTES, b"\0")


def _bound(sequence: int, key_id: str, file_id: bytes) -> bytes:
    return _BOUND.pack(_MAGIC, _VERSION, _AES_256_GCM, sequence, len(key_id), key_id.encode(), file_id)


# Blocks


class Record(NamedTuple):
    """A record of a block. Plain positions count from the block's begin, `place` from the block's position."""

    begin: int
    end: int  # of the part not truncated
    whole_end: int  # as written
    place: int

    @property
    def place_end(self) -> int:
        """Position of the next record."""
        return self.place + OVERHEAD_BYTES + self.whole_end - self.begin


class Walked(NamedTuple):
    """The contiguous records of a block."""

    records: list[Record]
    end: int  # plain end, from the begin of the block
    place: int  # position behind the last record

    @property
    def ends_with_cut(self) -> bool:
        """True if the last record is empty, which records a truncation."""
        return bool(self.records) and self.records[-1].whole_end == self.records[-1].begin


def walk(opener: Opener, block_begin: int, block: memoryview) -> Walked:
    """Return the records of a block, not all of them decrypted."""
    records: list[Record] = []
    place, end, size = BLOCK_HEADER_BYTES, 0, len(block)
    unpack = _RECORD.unpack_from
    while place + OVERHEAD_BYTES <= size:
        length, begin, nonce = unpack(block, place)
        place_end = place + OVERHEAD_BYTES + length
        if place_end > size or begin > end:
            break  # torn or corrupt: what comes behind it cannot be found
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
    """Decrypt a record, including truncated bytes; None: it does not decrypt."""
    nonce = bytes(block[record.place + RECORD_HEADER_BYTES - NONCE_BYTES : record.place + RECORD_HEADER_BYTES])
    return opener.open(block_begin + record.begin, nonce, block[record.place + RECORD_HEADER_BYTES : record.place_end])
