"""Where reading begins and ends, and what a checkpoint says of it.

Rules: Spark keeps a query's offsets as JSON and compares the text: names and partitions are sorted. What was
checkpointed names the cluster's id and the stream's, so that another stream of the same name is not taken for it, and
the leader epoch in which each offset was told, so that a log that was cut and written anew is noticed. Where a batch
does not begin at the end of the one before it, because a partition is new to the query or lost what was read, its end
says where it begins: a replay reads the same rows. The group that shows how far the query is goes along, unless its
options name one: so it is the query's own, and the same after a restart.

    {"orders": {"begins": {"1": 0}, "cluster": "c-1f", "epochs": {"0": 3, "1": 3}, "group": "spark-5f0c91ab", "id": 7,
                "offsets": {"0": 4711, "1": 12}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.base.errors import ConfigError

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
"""Kafka's numbers for the places that have names."""

LOG_STARTS = "log_starts"
"""In what a query reports as its latest offset, of each stream: where its partitions begin. No checkpoint has it."""


@dataclass(frozen=True)
class Earliest:
    """The first message that the log still holds."""


@dataclass(frozen=True)
class Latest:
    """Behind the last one."""


@dataclass(frozen=True)
class Offsets:
    """An offset for each partition of each stream; -2 and -1 are the earliest and the latest."""

    offsets: Mapping[str, Mapping[int, int]]
    noted: Positions | None = None  # those of a checkpoint, which also says of which streams they are


@dataclass(frozen=True)
class Moment:
    """The first message stored at a time or later: one for all, or one for each partition."""

    all_ms: int | None
    each_ms: Mapping[str, Mapping[int, int]]
    latest_if_none: bool


Where = Earliest | Latest | Offsets | Moment


class Key(NamedTuple):
    """A partition of a stream, by name: as options and checkpoints have it."""

    stream: str
    partition: int


class Position(NamedTuple):
    """A place in a partition: the next offset, and the leader epoch in which it was told; 0: not known."""

    offset: int
    leader_epoch: int = 0


class Positions(NamedTuple):
    """How far a query has come in each partition, and which stream bears each name."""

    stream_ids: Mapping[str, int]
    positions: Mapping[Key, Position]
    begins: Mapping[Key, int] = MappingProxyType(
        {}
    )  # where the batch that ends here began, if not where the last ended
    cluster: str = ""  # the id of the one that has these streams; empty: not known
    gone: frozenset[str] = frozenset()  # streams that were not there any more, which was said
    group: str = ""  # that of the query; empty: its options name one, or it is older than this field

    def to_json(self) -> dict[str, Any]:
        """Canonical: the same positions are the same text."""
        out: dict[str, Any] = {}
        for name in sorted(self.stream_ids):
            keys = sorted(key for key in self.positions if key.stream == name)
            begins = {str(key.partition): self.begins[key] for key in keys if key in self.begins}
            out[name] = {"begins": begins} if begins else {}
            out[name] |= {"cluster": self.cluster} if self.cluster else {}
            out[name] |= {"gone": True} if name in self.gone else {}
            out[name] |= {"epochs": {str(key.partition): self.positions[key].leader_epoch for key in keys}}
            out[name] |= {"group": self.group} if self.group else {}
            out[name] |= {
                "id": self.stream_ids[name],
                "offsets": {str(key.partition): self.positions[key].offset for key in keys},
            }
        return out

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Positions:
        """ConfigError: the checkpoint is not one of this source."""
        try:
            stream_ids = {name: int(one["id"]) for name, one in found.items()}
            clusters = {str(one["cluster"]) for one in found.values() if "cluster" in one}
            groups = {str(one["group"]) for one in found.values() if "group" in one}
            gone = frozenset(name for name, one in found.items() if one.get("gone"))
            positions = {
                Key(name, int(number)): Position(int(offset), int(one.get("epochs", {}).get(number, 0)))
                for name, one in found.items()
                for number, offset in one["offsets"].items()
            }
            begins = {
                Key(name, int(number)): int(offset)
                for name, one in found.items()
                for number, offset in one.get("begins", {}).items()
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            text = "the checkpoint was not written by this source; begin with another checkpointLocation"
            raise ConfigError([f"checkpointLocation: {text}: {found!r}"]) from None
        return cls(stream_ids, positions, begins, max(clusters, default=""), gone, max(groups, default=""))

    def of(self, key: Key, stream_id: int) -> Position | None:
        """Where a partition of that very stream is; None: it is new."""
        return self.positions.get(key) if self.stream_ids.get(key.stream) == stream_id else None
