"""Which streams and partitions are read: names, patterns and subjects, and what the brokers have of them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from penstock.access import Operation
from penstock.base.errors import ConfigError, ErrorCode
from penstock.base.subjects import overlap, stream_name_mistake
from penstock.client.blocking.client import Client
from penstock.client.errors import NotAuthorized, StreamNotFound
from penstock.lake.reading import permissions
from penstock.lake.reading.positions import Key
from penstock.messages import StreamInfo


@dataclass(frozen=True)
class Selection:
    """The streams to read, and the subjects of their messages."""

    names: tuple[str, ...] = ()
    globs: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] | None = None
    subjects: tuple[str, ...] = ()


def listed(text: str) -> list[str]:
    """Return the parts between commas, without empty ones."""
    return [one.strip() for one in text.split(",") if one.strip()]


def split_globs(names: Iterable[str]) -> tuple[list[str], tuple[str, ...]]:
    """Return (the names of streams, the patterns such as `orders-*`)."""
    found = list(names)
    return [one for one in found if not _is_glob(one)], tuple(one for one in found if _is_glob(one))


def _is_glob(name: str) -> bool:
    return "*" in name or "?" in name


def selection_of(stream: str) -> Selection:
    """Parse a stream's name, several names separated by commas, or patterns. Raise ConfigError with all mistakes."""
    names, globs = split_globs(listed(stream))
    mistakes = [f"stream: {one}" for one in map(stream_name_mistake, names) if one is not None]
    if not (names or globs):
        mistakes.append("stream: it is missing; give a stream's name")
    if mistakes:
        raise ConfigError(mistakes)
    return Selection(tuple(dict.fromkeys(names)), globs)


class Chosen(NamedTuple):
    """The streams and partitions to read."""

    streams: Mapping[str, StreamInfo]
    keys: tuple[Key, ...]

    @property
    def stream_ids(self) -> dict[str, int]:
        """Ids of the streams by name."""
        return {name: int(info.stream_id) for name, info in self.streams.items()}

    def without(self, names: Iterable[str]) -> Chosen:
        """Return the others."""
        left_out = set(names)
        streams = {name: info for name, info in self.streams.items() if name not in left_out}
        return Chosen(streams, tuple(key for key in self.keys if key.stream not in left_out))


def choose(client: Client, selection: Selection, timeout_s: float, *, may_lack: bool = False) -> Chosen:
    """Return the selected streams and partitions. Raise ConfigError if a stream has no such partition.

    Raise StreamNotFound if no stream matches, or a named stream does not exist, NotAuthorized without the permission to
    read it; with `may_lack`, leave such a stream out.
    """
    found = _streams(client, selection, timeout_s, may_lack=may_lack)
    if not found:
        wanted = (*selection.names, *selection.globs, *filter(None, [selection.pattern]), *selection.subjects)
        raise StreamNotFound(ErrorCode.STREAM_NOT_FOUND, f"no stream matches {', '.join(wanted)}")
    keys = []
    for name, info in sorted(found.items()):
        there = [int(one.partition) for one in info.partitions]
        assigned = there if selection.assigned is None else list(selection.assigned[name])
        if missing := sorted(set(assigned) - set(there)):
            raise ConfigError([f"assign: stream {name} has no partition {missing[0]}; it has {len(there)}"])
        keys += [Key(name, number) for number in assigned]
    return Chosen(found, tuple(keys))


def _streams(client: Client, selection: Selection, timeout_s: float, *, may_lack: bool) -> dict[str, StreamInfo]:
    named = {}
    for name in selection.names:
        try:
            named[name] = permissions.there(client, Operation.READ, name, timeout_s, selection.subjects)
        except (StreamNotFound, NotAuthorized):
            if not may_lack:
                raise
    if selection.names and not selection.globs:
        return named
    patterns = _patterns(selection)
    users_own = [info for info in client.streams(timeout=timeout_s) if not info.config.is_internal]
    if not (patterns or named):
        storing = selection.subjects
        return {
            info.name: info
            for info in users_own
            if any(overlap(one, subject) for one in info.config.held_subjects for subject in storing)
        }
    return named | {one.name: one for one in users_own if any(pattern.match(one.name) for pattern in patterns)}


def _patterns(selection: Selection) -> list[re.Pattern[str]]:
    patterns = [re.compile(fnmatch.translate(one)) for one in selection.globs]
    if selection.pattern is not None:
        patterns.append(re.compile(f"(?:{selection.pattern})\\Z"))
    return patterns


def is_selected(name: str, selection: Selection) -> bool:
    """True if the selection has a stream's name or a pattern that matches it."""
    return name in selection.names or any(pattern.match(name) for pattern in _patterns(selection))
