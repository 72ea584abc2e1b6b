"""What workers of consumers with acks saw, and what of it must not be.

| class               | what it is                                                                     |
|---------------------|--------------------------------------------------------------------------------|
| never delivered     | a message whose publisher was told that it is stored came to no worker          |
| confirmed, and back | a message came again, SLACK_S or more behind the answer to its ack              |
| count told twice    | two deliveries of one message have one count, though deliveries are committed   |
| from nowhere        | a message was delivered that was never published                                |
| never acked         | a message is done for a consumer without max_deliver, and no worker ever acked it |
| past max_deliver    | a message was delivered more often than max_deliver, or told so                  |

A broker that is stopped (SIGSTOP) may have frames in its socket, which leave it when it goes on: what was confirmed
while a broker was stopped may come until SLACK_S behind its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

SLACK_S = 3.0
"""A delivery and the answer to an ack take different connections."""


class Taken(NamedTuple):
    """A worker was delivered a message."""

    at_s: float
    consumer: str
    value: str
    deliveries: int


class Confirmed(NamedTuple):
    """An ack was answered."""

    at_s: float
    consumer: str
    value: str


class Stopped(NamedTuple):
    """A broker did nothing for a while, and went on."""

    begin_s: float
    end_s: float


class AckHistory:
    """Events of one run."""

    def __init__(self) -> None:
        self.published: set[str] = set()  # sent
        self.stored: set[str] = set()  # its publisher was told so
        self.taken: list[Taken] = []
        self.acking: set[tuple[str, str]] = set()  # consumer and value: a worker was about to ack it
        self.confirmed: list[Confirmed] = []
        self.stopped: list[Stopped] = []

    def mistakes(
        self, consumers: Iterable[str], counted: Iterable[str], limits: Mapping[str, int] | None = None
    ) -> dict[str, list[str]]:
        """Return mistakes by class, of consumers that are idle.

        `counted`: consumers whose deliveries are committed before they are sent. `limits`: max_deliver, where a
        message may come to it.
        """
        limits = limits or {}
        found: dict[str, list[str]] = {}
        for consumer in consumers:
            came = {one.value for one in self.taken if one.consumer == consumer}
            self._add(found, "never delivered", consumer, self.stored - came)
            self._add(found, "from nowhere", consumer, came - self.published)
            self._add(found, "confirmed, and back", consumer, self._back(consumer))
            if consumer in limits:
                self._add(found, "past max_deliver", consumer, self._past(consumer, limits[consumer]))
            else:
                acked = {value for one, value in self.acking if one == consumer}
                self._add(found, "never acked", consumer, self.stored - acked)
        for consumer in counted:
            told = Counter((one.value, one.deliveries) for one in self.taken if one.consumer == consumer)
            twice = (f"{value} {deliveries}" for (value, deliveries), times in told.items() if times > 1)
            self._add(found, "count told twice", consumer, twice)
        return found

    @staticmethod
    def _add(found: dict[str, list[str]], kind: str, consumer: str, values: Iterable[str]) -> None:
        if told := sorted(values):
            found.setdefault(kind, []).append(f"{consumer}: {len(told)}, the first {told[:5]}")

    def _past(self, consumer: str, limit: int) -> set[str]:
        times = Counter(one.value for one in self.taken if one.consumer == consumer)
        told = {one.value for one in self.taken if one.consumer == consumer and one.deliveries > limit}
        return told | {value for value, count in times.items() if count > limit}

    def _back(self, consumer: str) -> set[str]:
        answered: dict[str, float] = {}
        for one in self.confirmed:
            if one.consumer == consumer:
                answered.setdefault(one.value, one.at_s)
        return {
            one.value
            for one in self.taken
            if one.consumer == consumer and one.value in answered and one.at_s > self._end_s(answered[one.value])
        }

    def _end_s(self, confirmed_s: float) -> float:
        """Return until when a message that was confirmed then may still come."""
        ends = [pause.end_s for pause in self.stopped if pause.begin_s - SLACK_S <= confirmed_s <= pause.end_s]
        return max([confirmed_s, *ends]) + SLACK_S
