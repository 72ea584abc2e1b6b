"""Start and end positions of reading, and their JSON in a checkpoint.

Rules: Spark stores a query's offsets as JSON and compares the text, so names and partitions are sorted. A checkpoint
holds the cluster id and the stream ids, to detect another stream of the same name, and the leader epoch of each offset,
to detect that a log was truncated and written again. If a batch does not begin at the end of the previous one, because
a partition was added or its log was truncated, the batch's end offset also holds its begin, so that a replay reads the
same rows. The checkpoint holds the query's consumer group, too, unless the options name one: so a query keeps its group
after a restart. With typed columns it holds the versions of the schemas that these are of, in `schemas`.

    {"orders": {"begins": {"1": 0}, "cluster": "c-1f", "epochs": {"0": 3, "1": 3}, "group": "spark-5f0c91ab", "id": 7,
                "offsets": {"0": 4711, "1": 12}}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

from penstock.base.errors import ConfigError
from penstock.lake.reading.positions import Key, Position

EARLIEST_OFFSET, LATEST_OFFSET = -2, -1
"""Kafka's numbers for earliest and latest."""

SCHEMAS = "schemas"
"""Field of a stream's offset: numbers of the schemas' versions, by pattern of subjects."""

NEWER_SCHEMAS = "newer_schemas"
"""Field of the latest offset that a query reports: versions that it does not use. Checkpoints do not have it."""

LOG_STARTS = "log_starts"
"""Field of the latest offset that a query reports: log start offsets by partition. Checkpoints do not have it."""


@dataclass(frozen=True)
class Earliest:
    """The log start offset (`log_start`)."""


@dataclass(frozen=True)
class Latest:
    """The high watermark (`committed_end`)."""


@dataclass(frozen=True)
class Offsets:
    """An offset for each partition of each stream; -2 is earliest, -1 latest."""

    offsets: Mapping[str, Mapping[int, int]]
    noted: Positions | None = None  # the checkpoint that the offsets are from, with the stream ids


@dataclass(frozen=True)
class Moment:
    """The first message stored at a time or later: one time for all partitions, or one for each."""

    all_ms: int | None
    each_ms: Mapping[str, Mapping[int, int]]
    latest_if_none: bool


Boundary = Earliest | Latest | Offsets | Moment


class Positions(NamedTuple):
    """A query's position in each partition, and the ids of the streams."""

    stream_ids: Mapping[str, int]
    positions: Mapping[Key, Position]
    begins: Mapping[Key, int] = MappingProxyType(
        {}
    )  # begin of the batch that ends here, if not the previous batch's end
    cluster: str = ""  # cluster id; empty: unknown
    gone: frozenset[str] = frozenset()  # streams deleted or no longer selected; reported
    group: str = ""  # empty: the query's options name one, or the checkpoint is older than this field
    schemas: Mapping[str, Mapping[str, int]] = MappingProxyType({})  # versions of typed columns, by stream and pattern

    def to_json(self) -> dict[str, Any]:
        """Return the canonical form: equal positions give equal text."""
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
            out[name] |= {SCHEMAS: dict(sorted(self.schemas[name].items()))} if self.schemas.get(name) else {}
        return out

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Positions:
        """Parse a checkpoint. Raise ConfigError if this source has not written it."""
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
            schemas = schema_versions({name: one[SCHEMAS] for name, one in found.items() if SCHEMAS in one})
        except (AttributeError, KeyError, TypeError, ValueError):
            text = "the checkpoint was not written by this source; begin with another checkpointLocation"
            raise ConfigError([f"checkpointLocation: {text}: {found!r}"]) from None
        return cls(stream_ids, positions, begins, max(clusters, default=""), gone, max(groups, default=""), schemas)

    def of(self, key: Key, stream_id: int) -> Position | None:
        """Return the position of a partition of the stream with this id; None if it is new."""
        return self.positions.get(key) if self.stream_ids.get(key.stream) == stream_id else None


def schema_versions(found: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Return numbers of versions by stream and pattern, from JSON of such, or of a checkpoint. Raise ValueError."""
    out = {}
    for stream, of in found.items():
        numbers = of.get(SCHEMAS, {}) if isinstance(of, dict) and "offsets" in of and "id" in of else of
        if not isinstance(numbers, dict) or not all(type(one) is int and one >= 1 for one in numbers.values()):
            example = '{"orders": {"orders.*.placed": 1}}'
            raise ValueError(f"{of!r} of {stream} is not a version for each pattern of subjects, as {example}")
        if numbers:
            out[stream] = dict(numbers)
    return out
