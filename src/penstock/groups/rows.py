"""Committed offsets as rows of `__offsets`: the format of keys and values.

    key    v1/offset/GROUP/STREAM_ID/PARTITION
    value  {"offset":42,"leader_epoch":3,"metadata":"…","by":"…"}, or null: the offset is deleted

Rules: both are text, so that people can read the stream; the row's timestamp is the time of the commit. The last row of
a key counts. A key begins with the version of the whole row; its numbers are decimal without leading zeros, so that one
place has one key. A field added to the value later has a default; readers ignore unknown fields. A row whose key or
value this version does not know is kept and ignored. The stream is named by its id: a stream that is deleted and
created again is another one, and begins without offsets.
"""

from __future__ import annotations

import re
import sys
from typing import Annotated, NamedTuple

import msgspec

from penstock.base import limits
from penstock.groups.membership import Generation

OFFSETS_STREAM = "__offsets"
"""The stream that holds committed offsets."""

SUBJECT = b"$PENSTOCK.offsets"
"""Subject of every row."""

_GROUP = re.compile(r"[A-Za-z0-9_.-]+")
_GENERATION_KEY = re.compile(rb"v1/group/([A-Za-z0-9_.-]{1,128})")
_KEY = re.compile(rb"v1/offset/([A-Za-z0-9_.-]{1,128})/([1-9][0-9]{0,18})/(0|[1-9][0-9]{0,9})")


class OffsetKey(NamedTuple):
    """The group, stream and partition of an offset."""

    group: str
    stream_id: int
    partition: int


class GroupPosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A committed offset; `offset` is that of the next message to read."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=limits.OFFSET_MAX)]
    # Leader epoch in which that offset was valid.
    leader_epoch: Annotated[int, msgspec.Meta(ge=0, lt=2**32)] | None = None
    metadata: str = ""  # the consumer's note
    by: str = ""  # committing user, as in `Granted.by`; empty also for an administrator


_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_encoder = msgspec.json.Encoder()
_generation_decoder = msgspec.json.Decoder(Generation)
_decoder = msgspec.json.Decoder(GroupPosition)


def group_mistake(group: str) -> str | None:
    """Return why `group` is no valid group name; None if it is valid."""
    if not group:
        return "a group needs a name"
    if len(group) > limits.GROUP_NAME_CHARS_MAX:
        return f"the group's name is {len(group)} characters long; the limit is {limits.GROUP_NAME_CHARS_MAX}"
    if not _GROUP.fullmatch(group):
        return f"the group's name {group!r} may hold only letters, digits, '.', '-' and '_'"
    return None


def encode_key(place: OffsetKey) -> bytes:
    return f"v1/offset/{place.group}/{place.stream_id}/{place.partition}".encode()


def decode_key(key: bytes | None) -> OffsetKey | None:
    """Return the place of a key; None if the key is of another kind or a later version."""
    match = None if key is None else _KEY.fullmatch(key)
    if match is None:
        return None
    return OffsetKey(match[1].decode(), int(match[2]), int(match[3]))


def encode_value(position: GroupPosition) -> bytes:
    return _encoder.encode(position)


def decode_value(value: bytes) -> GroupPosition | None:
    """Return the position of a value; None if this version does not know it."""
    try:
        position = _decoder.decode(value)
    except _MALFORMED:
        return None
    if position.by:  # few users commit many offsets: share one string each
        msgspec.structs.force_setattr(position, "by", sys.intern(position.by))
    return position


def encode_generation_key(group: str) -> bytes:
    return f"v1/group/{group}".encode()


def decode_generation_key(key: bytes | None) -> str | None:
    """Return the group of a key; None if the key is of another kind."""
    match = None if key is None else _GENERATION_KEY.fullmatch(key)
    return None if match is None else match[1].decode()


def encode_generation(generation: Generation) -> bytes:
    return _encoder.encode(generation)


def decode_generation(value: bytes) -> Generation | None:
    """Return the generation of a value; None if this version does not know it."""
    try:
        return _generation_decoder.decode(value)
    except _MALFORMED:
        return None
