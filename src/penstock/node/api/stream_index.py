"""Index of the streams by name and by the subjects they store: lookups instead of scans.

Rules: the index is built at the first lookup after a stream was created or deleted, or its subjects changed, and then
serves all lookups until the next such change (`ClusterImage.names` is another object then). A stream's name never
changes, and the number of partitions is in no index. Where partition n listens on `<subject>.<n>`, its messages are
found through the subject; nothing is stored on the subject itself if nats-server maps it.

    orders.*.eu     ┐          orders ─┬─ * ── eu: {1}
    orders.>        ├─▶  root ─┤       └─ behind: {2}
    >               ┘          behind: {3}
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from penstock.base import limits
from penstock.base.ids import StreamId
from penstock.base.partitioning import PartitionBy
from penstock.base.subjects import is_reserved
from penstock.metadata.image import ClusterImage, StreamState

_DIGITS_MAX = len(str(limits.STREAM_PARTITIONS_MAX))


@dataclass(slots=True, eq=False)
class _Token:
    """Node of the subject trie."""

    next: dict[str, _Token] = field(default_factory=dict)
    here: list[StreamId] = field(default_factory=list)  # streams whose pattern ends here
    # Streams whose pattern ends with a `>` here: one token more at least.
    behind: list[StreamId] = field(default_factory=list)


class StreamIndex:
    """The index of the latest image that was looked up."""

    def __init__(self) -> None:
        self._made_of: object = None  # names of the image that the index was built from
        self._names: list[str] | None = None
        self._root: _Token | None = None

    def page(
        self,
        image: ClusterImage,
        after: str | None,
        size: int,
        seen: Callable[[list[str]], list[str]] = lambda names: names,
    ) -> tuple[list[str], str | None]:
        """Return up to `size` sorted names after `after`, and the last of them if there are more.

        `seen` returns those of the sorted names that the caller may see. Fewer names are returned if more would have
        over METADATA_PARTITIONS_MAX partitions.
        """
        self._look_at(image)
        if self._names is None:
            self._names = sorted(image.names)
        known = seen(self._names)
        start = 0 if after is None else bisect_right(known, after)
        names = known[start : start + size]
        counts = accumulate(len(image.by_name(name).partitions) for name in names)
        names = names[: max(1, sum(count <= limits.METADATA_PARTITIONS_MAX for count in counts))]
        return names, names[-1] if names and start + len(names) < len(known) else None

    def covering(self, image: ClusterImage, subject: str) -> list[StreamState]:
        """Return the streams that store a message on this subject without wildcards, by name."""
        self._look_at(image)
        if self._root is None:
            self._root = _planted(image)
        found: list[StreamId] = []
        tokens = [self._root]
        names = subject.split(".")
        for number, name in enumerate(names):
            if number and number == len(names) - 1:
                found += _with_partition(image, name, (one for token in tokens for one in token.here))
            is_hidden = number == 0 and is_reserved(subject)
            if not is_hidden:
                for token in tokens:
                    found += token.behind
            steps = (name,) if is_hidden else (name, "*")
            tokens = [token.next[one] for token in tokens for one in steps if one in token.next]
        for token in tokens:
            found += (one for one in token.here if _is_on_subject(image, one))
        return sorted((image.streams[stream_id] for stream_id in found), key=lambda state: state.name)

    def _look_at(self, image: ClusterImage) -> None:
        if self._made_of is not image.names:
            self._made_of = image.names
            self._names = self._root = None


def _is_on_subject(image: ClusterImage, stream_id: StreamId) -> bool:
    """True if one of the stream's partitions listens on the subject itself."""
    return image.streams[stream_id].config.split.how is not PartitionBy.MAPPED


def _with_partition(image: ClusterImage, name: str, stream_ids: Iterable[StreamId]) -> Iterator[StreamId]:
    """Yield those of the streams that have a partition of this number; its subject ends with it."""
    if not name.isascii() or not name.isdecimal() or (name[0] == "0" and name != "0") or len(name) > _DIGITS_MAX:
        return
    for stream_id in stream_ids:
        state = image.streams[stream_id]
        split = state.config.split
        if split.has_subjects and int(split.how is not PartitionBy.MAPPED) <= int(name) < len(state.partitions):
            yield stream_id


def _planted(image: ClusterImage) -> _Token:
    root = _Token()
    for stream_id, state in image.streams.items():
        for subject in state.config.subjects:  # of which no two match one message
            _plant(root, stream_id, subject)
    return root


def _plant(token: _Token, stream_id: StreamId, subject: str) -> None:
    *names, last = subject.split(".")
    for name in names:
        token = token.next.setdefault(name, _Token())
    if last == ">":
        token.behind.append(stream_id)
    else:
        token.next.setdefault(last, _Token()).here.append(stream_id)
