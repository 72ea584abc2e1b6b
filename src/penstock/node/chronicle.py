"""What an operator reads in the log of the cluster: who leads, who is there, who is in sync.

Rules: nothing per message, and nothing per partition: what has happened since the last look is told together, by count
and the first few names. A look comes at most once in NEWS_INTERVAL_MS, so there are a handful of lines in a second at
most, whatever flaps. A broker that is alone has no such news.

| news                                   | level   |
|----------------------------------------|---------|
| leads more partitions, or fewer        | info    |
| … of which it has the longest log      | info    |
| the metadata leader is another one     | info    |
| … is not known                         | warning |
| a broker is back, or votes             | info    |
| … is away                              | warning |
| the ISR of a led partition grew        | info    |
| … shrank                               | warning |
| a majority of the voters is reachable  | info    |
| … is not                               | warning |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.base import limits
from penstock.base.ids import BrokerId
from penstock.node.step import News, Outbox

_INTERVAL_US = limits.NEWS_INTERVAL_MS * 1_000


class Seen(NamedTuple):
    """What this broker sees of the cluster."""

    leader: BrokerId | None  # of the metadata
    has_majority: bool  # of the voters are reachable
    live: frozenset[BrokerId]
    voters: tuple[BrokerId, ...]


class _Named:
    """Partitions to which the same has happened."""

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.names) < limits.NEWS_NAMES_MAX:
            self.names.append(name)

    def __str__(self) -> str:
        return "; ".join(self.names) + ("; …" if self.count > len(self.names) else "")


class Chronicle:
    """Collects, and tells with `look`."""

    def __init__(self, broker_id: BrokerId, outbox: Outbox) -> None:
        self._broker_id = broker_id
        self._outbox = outbox
        self._seen: Seen | None = None
        self._next_us = 0
        self.led_count = 0  # leaderships that this broker began
        self._forget()

    def _forget(self) -> None:
        self._led, self._ended, self._recovered, self._shrunk, self._grown = (_Named() for _ in range(5))

    def led(self, name: str) -> None:
        """This broker leads that partition."""
        self.led_count += 1
        self._led.add(name)

    def ended(self, name: str) -> None:
        """It does so no more."""
        self._ended.add(name)

    def recovered(self, compared: str) -> None:
        """This broker leads a partition for it has the longest log of those that were compared."""
        self._recovered.add(compared)

    def isr(self, name: str, before: tuple[BrokerId, ...], after: tuple[BrokerId, ...]) -> None:
        """Others are in sync with a partition that this broker leads."""
        if set(before) - set(after):
            self._shrunk.add(f"{name} to {_ids(after)}")
        elif len(after) > len(before):
            self._grown.add(f"{name} to {_ids(after)}")

    def look(self, seen: Seen, now_us: int, *, is_alone: bool) -> None:
        """Tell what is news, if it is time for that."""
        if now_us < self._next_us:
            return
        self._next_us = now_us + _INTERVAL_US
        if not is_alone:
            self._tell_partitions()
            if self._seen is not None and seen != self._seen:
                self._tell_cluster(self._seen, seen)
        self._seen = seen
        self._forget()

    def _tell_partitions(self) -> None:
        if self._ended.count:
            self._info(f"stops leading {_partitions(self._ended)}")
        if self._led.count:
            self._info(f"leads {_partitions(self._led, 'more')}")
        if self._recovered.count:
            text = f"has the longest log of {_partitions(self._recovered)}"
            self._info(f"{text}; all who had what was acked came back from unclean stops")
        if self._shrunk.count:
            self._warn(f"fewer are in sync (ISR) with {_partitions(self._shrunk, 'led here')}")
        if self._grown.count:
            self._info(f"more are in sync (ISR) with {_partitions(self._grown, 'led here')}")

    def _tell_cluster(self, before: Seen, now: Seen) -> None:
        if before.has_majority and not now.has_majority:
            self._warn(f"no majority of the voters {_ids(now.voters)} is reachable: nobody can be given the lead")
        elif now.has_majority and not before.has_majority:
            self._info(f"a majority of the voters {_ids(now.voters)} is reachable")
        if now.leader != before.leader:
            if now.leader is None:
                self._warn(f"the metadata leader is lost: it was broker {before.leader}")
            else:
                self._info(f"the metadata leader is broker {now.leader}{self._own(now.leader)}")
        for broker_id in sorted(before.live - now.live):
            self._warn(f"broker {broker_id}{self._own(broker_id)} is away")
        for broker_id in sorted(now.live - before.live):
            self._info(f"broker {broker_id}{self._own(broker_id)} is there")
        for broker_id in sorted(set(now.voters) - set(before.voters)):
            self._info(f"broker {broker_id}{self._own(broker_id)} votes on the metadata: voters {_ids(now.voters)}")
        for broker_id in sorted(set(before.voters) - set(now.voters)):
            self._warn(f"broker {broker_id}{self._own(broker_id)} has no vote any more: voters {_ids(now.voters)}")

    def _own(self, broker_id: BrokerId) -> str:
        return ", this one," if broker_id == self._broker_id else ""

    def _info(self, text: str) -> None:
        self._outbox.step.news.append(News(text.rstrip(","), is_warning=False))

    def _warn(self, text: str) -> None:
        self._outbox.step.news.append(News(text, is_warning=True))


def _partitions(named: _Named, how: str = "") -> str:
    return f"{named.count} partition{'s' if named.count > 1 else ''}{f' {how}' if how else ''}: {named}"


def _ids(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(map(str, brokers))
