"""The master keys of a broker: the current one for new files, and older ones to open existing files.

Rules: a key has an id, which is public and stored in the files, and 32 secret bytes, which are never shown. The first
key is the current one: it wraps the keys of new files; the others only open older files. A key once used by this
process stays usable for as long as it runs, even if it is replaced; an id names one key only. If a file's key is
missing, or another key has its id, the error is an OSError of `is_missing_key`: the content is unknown, so the file is
neither corrupt nor empty. A file that should have a header and has none is corrupt: a NoHeaderError.

    keys-file   one key per line, the current one first; lines with # are comments
    line        "<key id> <32 bytes in base64>"
"""

from __future__ import annotations

import base64
import binascii
import errno
import re
from collections.abc import Callable, Sequence

KEY_BYTES = 32
KEY_ID_BYTES_MAX = 64
KEYS_MAX = 64
ENCRYPTED_BEGIN = b"PNSENC"  # start of every encrypted file

_NO_KEY = getattr(errno, "ENOKEY", errno.EACCES)
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXPECTED = "expected '<key id> <32 bytes in base64>', as `penstock keys new` prints them"


class KeyMissingError(OSError):
    """A file cannot be opened with the given keys; it may be intact. `key_id`: the key it needs, if known.

    `is_other`: a different key has that id.
    """

    def __init__(self, reason: str, path: str, key_id: str = "", *, is_other: bool = False) -> None:
        super().__init__(_NO_KEY, reason, path)
        self.key_id = key_id
        self.is_other = is_other

    def __str__(self) -> str:
        # The text of the error number would not suggest a key.
        return f"{self.filename}: {self.strerror}"


class NoHeaderError(OSError):
    """A file of an encrypted stream is plain, or corruption (not a crash) has destroyed all copies of its header.

    Readers see an EIO, like a disk error. `is_encrypted`: it was encrypted once.
    """

    def __init__(self, reason: str, path: str, *, is_encrypted: bool = False) -> None:
        super().__init__(errno.EIO, reason, path)
        self.is_encrypted = is_encrypted


class KeyMistakeError(ValueError):
    """The text is no valid list of keys. The message gives the line, and never quotes it."""


class EncryptionKeys:
    """The keys of this process. They can be replaced while files are open: an open file keeps its own key."""

    __slots__ = ("_by_id", "_current")

    def __init__(self, keys: Sequence[tuple[str, bytes]]) -> None:
        """`keys`: ids and keys, the current one first."""
        assert keys, "no key"
        self._current = keys[0][0]
        self._by_id = dict(keys)

    @property
    def current_id(self) -> str:
        """Id of the key for new files."""
        return self._current

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, the current one first."""
        return tuple(self._by_id)

    def replace(self, other: EncryptionKeys) -> tuple[str, ...]:
        """Put the keys of `other` before the present ones; return the ids of keys kept only for existing files.

        KeyMistakeError if an id would get another key; then nothing changes.
        """
        for key_id, key in other._by_id.items():
            if self._by_id.get(key_id, key) != key:
                raise KeyMistakeError(f"the key {key_id!r} is another one than before; give a new key an id of its own")
        staying = tuple(key_id for key_id in self._by_id if key_id not in other._by_id)
        self._current, self._by_id = other._current, other._by_id | self._by_id
        return staying

    def key(self, key_id: str, path: str) -> bytes:
        """Return the key that the file at `path` needs; KeyMissingError."""
        found = self._by_id.get(key_id)
        if found is None:
            text = f"it is encrypted with the key {key_id!r}, which is not among the keys here"
            raise KeyMissingError(f"{text} ({', '.join(map(repr, self._by_id))})", path, key_id)
        return found

    def __repr__(self) -> str:
        return f"EncryptionKeys({', '.join(self._by_id)})"


def parse_keys(text: str) -> EncryptionKeys:
    """Parse a keys-file, or a variable with commas in place of line ends; KeyMistakeError."""
    keys: dict[str, bytes] = {}
    for number, raw in enumerate(text.replace(",", "\n").splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        key_id, key = _parsed(line, number)
        if key_id in keys:
            raise KeyMistakeError(f"line {number}: the key id {key_id!r} occurs twice")
        if key in keys.values():
            raise KeyMistakeError(f"line {number}: the key {key_id!r} is the same as another one")
        keys[key_id] = key
    if not keys:
        raise KeyMistakeError(f"there is no key; {_EXPECTED}")
    if len(keys) > KEYS_MAX:
        raise KeyMistakeError(f"there are {len(keys)} keys; at most {KEYS_MAX} are used")
    return EncryptionKeys(list(keys.items()))


def _parsed(line: str, number: int) -> tuple[str, bytes]:
    key_id, _, encoded = line.partition(" ")
    if _KEY_ID.fullmatch(key_id) is None or len(key_id) > KEY_ID_BYTES_MAX:
        # A line without an id has the key in its place: never quote it.
        raise KeyMistakeError(f"line {number}: {_EXPECTED}; an id has letters, digits, '.', '_' and '-'")
    try:
        key = base64.b64decode(encoded.strip(), validate=True)
    except (binascii.Error, ValueError):
        raise KeyMistakeError(f"line {number}: the key is not base64; {_EXPECTED}") from None
    if len(key) != KEY_BYTES:
        raise KeyMistakeError(f"line {number}: the key has {len(key)} bytes, not {KEY_BYTES}")
    return key_id, key


def new_key_line(key_id: str, random: Callable[[int], bytes]) -> str:
    """Return a line of a keys-file with a new key; KeyMistakeError if the id is invalid."""
    if " " in key_id:
        raise KeyMistakeError(f"{key_id!r} is no key id: it has letters, digits, '.', '_' and '-'")
    line = f"{key_id} {base64.b64encode(random(KEY_BYTES)).decode()}"
    _parsed(line, 1)
    return line


def is_missing_key(error: OSError) -> bool:
    """True if a file could not be opened because its key is missing."""
    return isinstance(error, KeyMissingError)


def missing_key(error: BaseException | None) -> KeyMissingError | None:
    """Return the KeyMissingError that caused this error; None: it has another cause."""
    while error is not None and not isinstance(error, KeyMissingError):
        error = error.__cause__
    return error
