"""Committed offsets as rows of `__offsets`: what their keys and values say.

    key    v1/offset/GROUP/STREAM_ID/PARTITION
    value  {"offset":42,"leader_epoch":3,"metadata":"…","by":"…"}, or null: nothing is committed any more

Rules: both are text, so that whoever reads the stream can read them; the row's timestamp says when it was committed.
The last row of a key counts. A key begins with the version of all the row; the numbers in it are decimal, without zeros
in front, so that one place has one key. A field that is added to the value later has a default, and those that a reader
does not know are passed over. A row whose key or value this version does not know is left as it is, and says nothing.
The stream is named by its id: one that is deleted and made again is another one, and begins without offsets.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated, NamedTuple

import msgspec

from penstock.base import limits
from penstock.groups.membership import Generation

OFFSETS_STREAM = "__offsets"
"""The stream that holds them."""

SUBJECT = b"$PENSTOCK.offsets"
"""Of every row."""

_GROUP = re.compile(r"[A-Za-z0-9_.-]+")
_GENERATION_KEY = re.compile(rb"v1/group/([A-Za-z0-9_.-]{1,128})")
_KEY = re.compile(rb"v1/offset/([A-Za-z0-9_.-]{1,128})/([1-9][0-9]{0,18})/(0|[1-9][0-9]{0,9})")


class Place(NamedTuple):
    """Whose offset in what."""

    group: str
    stream_id: int
    partition: int


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a group is: `offset` is that of the next message."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=limits.OFFSET_MAX)]
    # Of a leader in whose log that offset was right.
    leader_epoch: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    metadata: str = ""  # a note of the consumer's
    by: str = ""  # the user who has committed it, as `Granted.by`; empty: as there, or an administrator


_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()
_generation_decoder = msgspec.json.Decoder(Generation)
_decoder = msgspec.json.Decoder(Position)


def group_mistake(group: str) -> str | None:
    """Why `group` cannot name a group, or None if it can."""
    if not group:
        return "a group needs a name"
    if len(group) > limits.GROUP_NAME_CHARS_MAX:
        return f"the group's name is {len(group)} characters long; the limit is {limits.GROUP_NAME_CHARS_MAX}"
    if not _GROUP.fullmatch(group):
        return f"the group's name {group!r} may hold only letters, digits, '.', '-' and '_'"
    return None


def encode_key(place: Place) -> bytes:
    """The key of a place."""
    return f"v1/offset/{place.group}/{place.stream_id}/{place.partition}".encode()


def decode_key(key: bytes | None) -> Place | None:
    """The place of a key; None: it is of another kind, or of a later version."""
    match = None if key is None else _KEY.fullmatch(key)
    if match is None:
        return None
    return Place(match[1].decode(), int(match[2]), int(match[3]))


def encode_value(position: Position) -> bytes:
    """The value of a position."""
    return _encoder.encode(position)


def decode_value(value: bytes) -> Position | None:
    """The position of a value; None: it is none that this version knows."""
    try:
        position = _decoder.decode(value)
    except _MALFORMED:
        return None
    if position.by:  # few users commit many of them: each has one string in memory
        msgspec.structs.force_setattr(position, "by", sys.intern(position.by))
    return position


def encode_generation_key(group: str) -> bytes:
    """The key of a group's generations."""
    return f"v1/group/{group}".encode()


def decode_generation_key(key: bytes | None) -> str | None:
    """The group; None: it is another kind of key."""
    match = None if key is None else _GENERATION_KEY.fullmatch(key)
    return None if match is None else match[1].decode()


def encode_generation(generation: Generation) -> bytes:
    """The value of a generation."""
    return _encoder.encode(generation)


def decode_generation(value: bytes) -> Generation | None:
    """The generation of a value; None: it is none that this version knows."""
    try:
        return _generation_decoder.decode(value)
    except _MALFORMED:
        return None
