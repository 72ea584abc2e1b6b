"""Which streams store messages of subjects with the same first tokens: to find those that overlap a stream's subjects.

Theory: a subject's head is its first tokens, up to a wildcard, two at most. Two subjects overlap only if one's head
begins with the other's. So a few look-ups find all streams that are near, unless a wildcard comes so early that the
subject overlaps those of longer heads, and there are any.

| subject      | head  | may overlap subjects with the heads         |
|--------------|-------|---------------------------------------------|
| `a.b.c`      | `a.b` | `a.b`, `a`, the empty one                   |
| `a`          | `a`   | `a`, the empty one                          |
| `a.*`, `a.>` | `a`   | the same, and all that begin with `a.`      |
| `*.a`, `>`   | empty | all                                         |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from penstock.base.config import StreamConfig
from penstock.base.ids import StreamId
from penstock.metadata.persistent_map import PersistentMap

_WILDCARDS = ("*", ">")


class SubjectHeads(NamedTuple):
    """The heads of all streams' subjects. Immutable."""

    streams: PersistentMap[str, tuple[StreamId, ...]] = PersistentMap()  # by head; ids rise
    longer: PersistentMap[str, int] = PersistentMap()  # number of heads of two tokens, by their first token

    @classmethod
    def of(cls, configs: Iterable[tuple[StreamId, StreamConfig]]) -> SubjectHeads:
        """Return the heads of these streams."""
        found: dict[str, set[StreamId]] = {}
        for stream_id, config in configs:
            for head in _heads(config):
                found.setdefault(head, set()).add(stream_id)
        longer: dict[str, int] = {}
        for head in found:
            first, dot, _ = head.partition(".")
            if dot:
                longer[first] = longer.get(first, 0) + 1
        return cls(PersistentMap({head: tuple(sorted(ids)) for head, ids in found.items()}), PersistentMap(longer))

    def with_config(self, stream_id: StreamId, config: StreamConfig) -> SubjectHeads:
        """Return the heads with a stream's."""
        return self._changed(config, lambda ids: tuple(sorted({*ids, stream_id})))

    def without_config(self, stream_id: StreamId, config: StreamConfig) -> SubjectHeads:
        """Return the heads without a stream's."""
        return self._changed(config, lambda ids: tuple(one for one in ids if one != stream_id))

    def _changed(
        self, config: StreamConfig, change: Callable[[tuple[StreamId, ...]], tuple[StreamId, ...]]
    ) -> SubjectHeads:
        streams, longer = self
        for head in _heads(config):
            before = streams.get(head, ())
            now = change(before)
            if now:
                streams = streams.with_item(head, now)
            elif before:
                streams = streams.without(head)
            first, dot, _ = head.partition(".")
            if dot and bool(now) is not bool(before):
                count = longer.get(first, 0) + (1 if now else -1)
                longer = longer.with_item(first, count) if count else longer.without(first)
        return SubjectHeads(streams, longer)

    def near(self, patterns: Iterable[str]) -> list[StreamId] | None:
        """Return the streams that may have a subject that overlaps one of `patterns`, rising; None: any may."""
        found: set[StreamId] = set()
        for pattern in patterns:
            head = _head(pattern)
            first, dot, _ = head.partition(".")
            if not dot and len(pattern) > len(head) and (not head or head in self.longer):
                return None
            for one in {"", first, head}:
                found.update(self.streams.get(one, ()))
        return sorted(found)


def _heads(config: StreamConfig) -> set[str]:
    return {_head(one) for one in config.subjects}


def _head(subject: str) -> str:
    tokens = subject.split(".", 2)[:2]
    for number, token in enumerate(tokens):
        if token in _WILDCARDS:
            return tokens[0] if number else ""
    return ".".join(tokens)
