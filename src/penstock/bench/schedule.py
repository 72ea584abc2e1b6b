"""What is published when: a pure function of a plan, so that sender, receiver and checker agree without talking.

Rules: message i is due at i / rate after the start, whatever happened to those before it. Its value begins with i in
8 bytes; the rest is a piece of random bytes at a place that depends on i, so that nothing can be compressed.

| bytes of a value | what                       |
|------------------|----------------------------|
| 0 to 7           | i, big-endian              |
| from 8 on        | random, of a seeded pool   |
"""

from __future__ import annotations

from random import Random

import msgspec

from penstock.base import limits

INDEX_BYTES = 8
_POOL_BYTES = 4 * limits.MIB  # beyond a value's own size; made once in some milliseconds
_STRIDE = 1_000_003  # a prime: pieces of neighbours overlap little


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run at a fixed rate. The first `warm_up` messages are sent and stored like others, and not measured."""

    size: int
    rate_per_s: float
    measured: int
    warm_up: int
    seed: int

    @property
    def count(self) -> int:
        """How many messages are sent."""
        return self.warm_up + self.measured

    @property
    def duration_s(self) -> float:
        """From the first message to the end of the last one's turn."""
        return self.count / self.rate_per_s

    def due_ns(self, index: int) -> int:
        """When message `index` is due, counted from the start."""
        return round(index * 1e9 / self.rate_per_s)


class Contents:
    """The values of a plan."""

    def __init__(self, plan: Plan) -> None:
        assert plan.size >= INDEX_BYTES
        self._body_bytes = plan.size - INDEX_BYTES
        self._pool = memoryview(Random(plan.seed).randbytes(_POOL_BYTES + self._body_bytes))  # noqa: S311

    def parts(self, index: int) -> tuple[bytes, memoryview]:
        """A message's value in two parts, not copied."""
        place = index * _STRIDE % _POOL_BYTES
        return index.to_bytes(INDEX_BYTES, "big"), self._pool[place : place + self._body_bytes]

    def value(self, index: int) -> bytes:
        """A message's value."""
        return b"".join(self.parts(index))


def index_of(value: bytes | memoryview) -> int:
    """Which message this is. ValueError for what no plan made."""
    if len(value) < INDEX_BYTES:
        raise ValueError(f"a message of {len(value)} bytes is none of the benchmark")
    return int.from_bytes(value[:INDEX_BYTES], "big")
