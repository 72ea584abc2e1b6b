"""Feature level: one version of the cluster, below which no broker uses anything newer (ADR 80).

Rules: the level is part of the cluster image. Only the command `RaiseFeatureLevel` changes it, at an administrator's
request; a new cluster begins at the newest level of the broker that forms it. It is never lowered. A broker whose
version is lower than the level cannot be part of the cluster. Until the level is raised, brokers of the version before
can read everything that is written, so an upgrade can be taken back.

A feature that is no command, field or operation (`feature_versions` lists these) is a `Feature` in FEATURES:

    if image.has_feature(SCHEMA_REGISTRY): ...                            # True or False
    if (error := feature_versions.missing(image, SCHEMA_REGISTRY)): ...   # the refusal, with what to do
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

Version: TypeAlias = tuple[int, ...]
FeatureLevel: TypeAlias = tuple[int, int]

FIRST_LEVEL: FeatureLevel = (0, 3)
"""The level of a cluster that records none: it was formed by 0.3 or earlier."""

LEVELS: tuple[FeatureLevel, ...] = (FIRST_LEVEL, (0, 4))
"""The levels that this version knows, in order: its highest is that of `penstock.__version__`."""

NEWEST_LEVEL = LEVELS[-1]


class Feature(NamedTuple):
    """Something that a cluster can do from a level on."""

    name: str
    level: FeatureLevel


SCHEMA_REGISTRY = Feature("the registry of schemas", (0, 4))

DELETION = Feature("the deletion of single messages and by subject", (0, 4))

SUBJECT_INDEX = Feature("the index of subjects", (0, 4))

LEADER_DECIDES = Feature("compaction, expiry and rollups that the leader decides for all replicas", (0, 4))

LEADER_LEASE = Feature("look-ups that are never older than an ack given before", (0, 4))

JETSTREAM_API = Feature("JetStream's API for NATS clients", (0, 4))

CONSUMERS_WITH_ACKS = Feature("consumers with acks, which survive their leader", (0, 4))

FEATURES = (
    SCHEMA_REGISTRY,
    DELETION,
    SUBJECT_INDEX,
    LEADER_DECIDES,
    LEADER_LEASE,
    JETSTREAM_API,
    CONSUMERS_WITH_ACKS,
)

_NUMBERS = re.compile(r"\d+(?:\.\d+)*")


def version_of(text: str) -> Version:
    """Parse `0.2.0` into numbers; empty if there are none."""
    found = _NUMBERS.match(text)
    return () if found is None else tuple(map(int, found[0].split(".")))


def level_of(broker_version: str) -> FeatureLevel:
    """Return the highest of LEVELS of a broker of that version; a version without numbers is this program's."""
    numbers = version_of(broker_version) or NEWEST_LEVEL
    return max((level for level in LEVELS if level <= numbers), default=FIRST_LEVEL)


def raisable_to(level: str, broker_versions: Iterable[str]) -> str:
    """Return the highest level of brokers of these versions if it is above `level`, else an empty text."""
    highest = min(map(level_of, broker_versions), default=FIRST_LEVEL)
    return level_text(highest) if level and highest > version_of(level) else ""


def level_text(level: Version) -> str:
    """Write a level or version as `0.4`."""
    return ".".join(map(str, level))
