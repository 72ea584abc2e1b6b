"""The schedule of a run: a pure function of its plan, so that sender, receiver and checks agree on it.

Rules: Message i is due at i / rate after the start, even if earlier messages are late. Its value begins with i in 8
bytes; the rest is a slice of random bytes at a position that depends on i, so that nothing can be compressed.

| bytes of a value | content                    |
|------------------|----------------------------|
| 0 to 7           | i, big-endian              |
| from 8 on        | random, of a seeded pool   |
"""

from __future__ import annotations

from random import Random

import msgspec

from penstock.base import limits

INDEX_BYTES = 8
_POOL_BYTES = 4 * limits.MIB  # in addition to a value's own size; made once in some milliseconds
_STRIDE = 1_000_003  # a prime: slices of neighbours overlap little


class SchedulePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One run at a fixed rate. The first `warm_up` messages are sent and stored like others, and not measured."""

    size: int
    rate_per_s: float
    measured: int
    warm_up: int
    seed: int

    @property
    def count(self) -> int:
        """Number of messages."""
        return self.warm_up + self.measured

    @property
    def duration_s(self) -> float:
        """Seconds from the first due time to the end of the last message's interval."""
        return self.count / self.rate_per_s

    def due_ns(self, index: int) -> int:
        """Return the due time of message `index` in nanoseconds after the start."""
        return round(index * 1e9 / self.rate_per_s)


class Contents:
    """The values of a plan."""

    def __init__(self, plan: SchedulePlan) -> None:
        assert plan.size >= INDEX_BYTES
        self._body_bytes = plan.size - INDEX_BYTES
        self._pool = memoryview(Random(plan.seed).randbytes(_POOL_BYTES + self._body_bytes))  # noqa: S311

    def parts(self, index: int) -> tuple[bytes, memoryview]:
        """Return a message's value in two parts, without a copy."""
        place = index * _STRIDE % _POOL_BYTES
        return index.to_bytes(INDEX_BYTES, "big"), self._pool[place : place + self._body_bytes]

    def value(self, index: int) -> bytes:
        """Return a message's value."""
        return b"".join(self.parts(index))


def index_of(value: bytes | memoryview) -> int:
    """Return the index of a message. Raise ValueError if it is too short."""
    if len(value) < INDEX_BYTES:
        raise ValueError(f"a message of {len(value)} bytes is none of the benchmark")
    return int.from_bytes(value[:INDEX_BYTES], "big")
