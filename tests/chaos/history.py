"""What clients saw, as events: all that the checker knows.

Rules: an event says when its client had it, on one clock of this machine. A value names who sent it and as which of his
messages, `publisher:number`, and is sent in the order of its numbers. Nothing is kept of messages that nobody heard of.

| event       | who tells it                                                                         |
|-------------|--------------------------------------------------------------------------------------|
| `Sent`      | a publisher, before a message leaves it for the first time                           |
| `Acked`     | a publisher that was told where its message is                                       |
| `Polled`    | a consumer that was given rows, and from which offset on it had asked                |
| `SentBack`  | a consumer that was told that what it has read is gone: its next `turn` begins       |
| `PowerLost` | the one who cut the power: what may be gone since when, by the promise of the stream |
| `Kept`      | the end: what one replica has, from its files or by reading from it                  |
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple


class Place(NamedTuple):
    """One partition of one stream."""

    stream: str
    partition: int

    def __str__(self) -> str:
        return f"{self.stream}/{self.partition}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message leaves. `may_repeat`: it is sent again without an id if no ack comes, so it may be stored twice."""

    stream: str
    value: str
    may_repeat: bool = False


@dataclass(frozen=True, slots=True)
class Acked:
    """A publisher was told that `value` is at `offset`."""

    at_s: float
    place: Place
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Polled:
    """A consumer asked for what there is from `asked` on, and was given `rows`, each an offset and a value."""

    at_s: float
    consumer: str
    turn: int
    place: Place
    asked: int
    rows: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class SentBack:
    """A consumer was told that there is no longer what it has read in this turn; its next one begins at 0."""

    at_s: float
    consumer: str
    turn: int
    place: Place


@dataclass(frozen=True, slots=True)
class PowerLost:
    """All brokers lost their power: of a place in `since_s`, what was promised after that moment may be gone.

    `waited_s`: for how long no replica in sync of a place had begun to sync what it lacked on its disk.
    """

    at_s: float
    since_s: Mapping[Place, float]
    waited_s: Mapping[Place, float]


@dataclass(frozen=True, slots=True)
class Kept:
    """What `replica` has at the end: offset → (value, all that is stored with it)."""

    replica: str
    place: Place
    rows: Mapping[int, tuple[str, bytes]]


Event = Sent | Acked | Polled | SentBack | PowerLost | Kept


@dataclass(slots=True)
class History:
    """All events of a run, in the order in which they were told."""

    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """One more."""
        self.events.append(event)

    def save(self, path: Path) -> None:
        """One event a line, for people; what replicas keep is only counted, for it lies beside."""
        with path.open("w") as file:
            for event in self.events:
                file.write(json.dumps({type(event).__name__: _plain(event)}) + "\n")


def _plain(event: Event) -> object:
    if isinstance(event, Kept):
        return {"replica": event.replica, "place": str(event.place), "rows": len(event.rows)}
    if isinstance(event, PowerLost):
        by_place = {"since_s": event.since_s, "waited_s": event.waited_s}
        return {"at_s": event.at_s, **{name: {str(one): s for one, s in of.items()} for name, of in by_place.items()}}
    return asdict(event)


def publisher_of(value: str) -> tuple[str, int]:
    """Who sent it, and as which of his messages. ValueError: nobody sends such values."""
    publisher, _, number = value.rpartition(":")
    return publisher, int(number)
