"""The streams of the load: how they are configured, and the messages of the compacted one.

Rules: The compacted stream uses few keys at a time, each only for a while: so most messages are followed by another of
their key, and some tombstones by none. A tombstone has no value that identifies it, so each message of that stream has
a subject of its own.
"""

from __future__ import annotations

from importlib.util import find_spec
from random import Random
from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.testing.simulation.checks.checks import SentMessage

PARTITIONS = 3  # of the split stream
_ENCRYPTED = 0.3  # of all streams
_IN_USE = 4  # keys
_MESSAGES_EACH = 8  # approximate messages of a key before it is retired
_KEYLESS, _TOMBSTONES = 9, 4  # one message in so many
_STRIDE = 7_919  # distance between the random numbers of successive messages
_TOKEN = 3  # of `<stream>.<generation>.<token>`
_BOUNDS = ("k16", "k08")  # unsorted on purpose: the last partition lies in the middle
_MORE_BOUNDS = ("k04", "k12", "k20", "k24", "k02", "k28")  # of added partitions: each splits a range
WAYS: tuple[dict[str, Any], ...] = (
    {"partition_by": "key"},
    {"partition_by": f"token:{_TOKEN}"},
    {"partition_by": "range", "range_bounds": _BOUNDS},
    {"partition_by": f"range:{_TOKEN}", "range_bounds": _BOUNDS},
    {"partition_by": "group"},
)
"""Possible configurations of the split stream; each run has one."""


def grown(config: StreamConfig, more: int) -> StreamConfig:
    """Return the split stream's config with `more` additional partitions."""
    bounds = config.range_bounds
    if bounds:
        bounds += _MORE_BOUNDS[len(bounds) - len(_BOUNDS) :][:more]
    return msgspec.structs.replace(config, partitions=config.partitions + more, range_bounds=bounds)


def keyed(config: StreamConfig, number: int, chance: int, size_bytes: int = 0) -> SentMessage:
    """Make message number `number`, drawn with `chance`."""
    subject = config.subject.replace(">", str(number)).encode()
    value = (b"%b/" % subject).ljust(size_bytes, b".")
    chance += _STRIDE * number
    if chance % _KEYLESS == 0:
        return SentMessage(subject, value, value)
    chance //= _KEYLESS
    key = b"k%d" % (number // _MESSAGES_EACH + chance % _IN_USE)
    headers = b"NATS/1.0\r\nPenstock-Key: %b\r\n" % key
    if chance // _IN_USE % _TOMBSTONES == 0:
        return SentMessage(subject, subject, None, headers + b"Penstock-Tombstone: 1\r\n\r\n", key)
    return SentMessage(subject, value, value, headers + b"\r\n", key)


def encrypted_slots(slots: int, chance: Random) -> frozenset[int]:
    """Draw the slots whose streams are encrypted."""
    drawn = frozenset(slot for slot in range(slots) if chance.random() < _ENCRYPTED)
    return drawn if find_spec("cryptography") is not None else frozenset()
