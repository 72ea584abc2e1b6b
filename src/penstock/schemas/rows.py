"""Schemas as rows of `__schemas`: the format of keys and values.

    key    v1/text/TEXT_HASH                       value  {"kind":"avro","text":"…","closure":[["a.frugal","…"]]}
    key    v1/version/STREAM_ID/SUBJECT/NUMBER     value  {"kind":"avro","text_hash":"…","hash":"…","type_name":"…",…}

Rules: both are text, so that people can read the stream; the last row of a key counts, and a null value deletes. A text
stands before the versions that use it, in the same batch. A key begins with the version of the whole row; its numbers
are decimal without leading zeros, so that one version has one key. A field added to a value later has a default;
readers ignore unknown fields. A row whose key or value this version does not know is kept and ignored. The stream is
named by its id: one that is deleted and created again begins without schemas.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, NamedTuple

import msgspec

SCHEMAS_STREAM = "__schemas"
"""The stream that holds the schemas."""

SUBJECT = b"$PENSTOCK.schemas"
"""Subject of every row."""

_TEXT_KEY = re.compile(rb"v1/text/([0-9a-f]{64})")
_VERSION_KEY = re.compile(rb"v1/version/([1-9][0-9]{0,18})/(.{1,4096})/([1-9][0-9]{0,8})", re.DOTALL)

_Hash = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class VersionKey(NamedTuple):
    """A stream, a pattern of its subjects, and a number from 1 up."""

    stream_id: int
    subject: str
    number: int


class StoredText(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text as it was given, and the names and texts of its includes. `sharer`: the user that its bytes count for."""

    kind: str
    text: str
    closure: tuple[tuple[str, str], ...] = ()
    sharer: str = ""

    def hash(self) -> str:
        """Return the SHA-256 of the text as it is, with its closure: 64 hex digits."""
        parts = [self.kind, self.text]
        for name, included in self.closure:
            parts += [name, included]
        encoded = [part.encode() for part in parts]
        return hashlib.sha256(b"".join(b"%d:%b" % (len(part), part) for part in encoded)).hexdigest()

    @property
    def size(self) -> int:
        """Bytes of the text and its closure as UTF-8."""
        return len(self.text.encode()) + sum(len(text.encode()) for _, text in self.closure)


class StoredVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version. `hash`: of the schema; `by`: the user who registered it; `sharer`: the user it counts for."""

    kind: str
    text_hash: _Hash
    hash: _Hash
    registered_us: int
    type_name: str = ""
    message: str = ""
    framing: str = "bare"
    protocol: str = "binary"
    by: str = ""
    sharer: str = ""
    is_forced: bool = False


_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()
_text_decoder = msgspec.json.Decoder(StoredText)
_version_decoder = msgspec.json.Decoder(StoredVersion)


def encode_text_key(text_hash: str) -> bytes:
    return f"v1/text/{text_hash}".encode()


def encode_version_key(key: VersionKey) -> bytes:
    return f"v1/version/{key.stream_id}/{key.subject}/{key.number}".encode()


def decode_text_key(key: bytes | None) -> str | None:
    """Return the hash in a key; None if the key is of another kind or a later version."""
    match = None if key is None else _TEXT_KEY.fullmatch(key)
    return None if match is None else match[1].decode()


def decode_version_key(key: bytes | None) -> VersionKey | None:
    """Return the version that a key names; None if the key is of another kind or a later version."""
    match = None if key is None else _VERSION_KEY.fullmatch(key)
    if match is None:
        return None
    try:
        return VersionKey(int(match[1]), match[2].decode(), int(match[3]))
    except UnicodeDecodeError:
        return None


def encode_value(value: StoredText | StoredVersion) -> bytes:
    return _encoder.encode(value)


def decode_text(value: bytes) -> StoredText | None:
    """Return the text of a value; None if this version does not know it."""
    try:
        return _text_decoder.decode(value)
    except _MALFORMED:
        return None


def decode_version(value: bytes) -> StoredVersion | None:
    """Return the version of a value; None if this version of Penstock does not know it."""
    try:
        return _version_decoder.decode(value)
    except _MALFORMED:
        return None
