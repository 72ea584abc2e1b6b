"""Cluster events in the broker's log: leaderships, live brokers, voters and ISR changes.

Rules: no line per message or per partition: the events since the last report are reported together, by count and with
the first few names. Reports are at least CLUSTER_LOG_INTERVAL_MS apart, so there are a handful of lines a second at
most, however often states flap. A broker that is alone has no such news.

| event                                   | level   |
|-----------------------------------------|---------|
| leads more partitions, or fewer         | info    |
| leads after a comparison of log lengths | info    |
| another metadata leader                 | info    |
| no metadata leader                      | warning |
| a broker is live again, or votes        | info    |
| a broker is fenced, or lost its vote    | warning |
| the ISR of a led partition grew         | info    |
| the ISR of a led partition shrank       | warning |
| a majority of the voters is reachable   | info    |
| no majority of the voters is reachable  | warning |
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock.base import limits
from penstock.base.ids import BrokerId
from penstock.node.step import ClusterLogLine, Outbox

_INTERVAL_US = limits.CLUSTER_LOG_INTERVAL_MS * 1_000


class ClusterObservation(NamedTuple):
    """This broker's view of the cluster."""

    leader: BrokerId | None  # metadata leader
    has_majority: bool  # a majority of the voters is reachable
    live: frozenset[BrokerId]
    voters: tuple[BrokerId, ...]


class _Named:
    """Partitions with the same event: their count and the first few names."""

    def __init__(self) -> None:
        self.count = 0
        self.names: list[str] = []

    def add(self, name: str) -> None:
        self.count += 1
        if len(self.names) < limits.CLUSTER_LOG_NAMES_MAX:
            self.names.append(name)

    def __str__(self) -> str:
        return "; ".join(self.names) + ("; …" if self.count > len(self.names) else "")


class ClusterEventLog:
    """Collects events and reports them with `report_due`."""

    def __init__(self, broker_id: BrokerId, outbox: Outbox) -> None:
        self._broker_id = broker_id
        self._outbox = outbox
        self._seen: ClusterObservation | None = None
        self._next_us = 0
        self.led_count = 0  # leaderships begun by this broker
        self._forget()

    def _forget(self) -> None:
        self._led, self._ended, self._recovered, self._shrunk, self._grown = (_Named() for _ in range(5))

    def led(self, name: str) -> None:
        """Note that this broker began to lead a partition."""
        self.led_count += 1
        self._led.add(name)

    def ended(self, name: str) -> None:
        """Note that this broker stopped leading a partition."""
        self._ended.add(name)

    def recovered(self, compared: str) -> None:
        """Note that this broker leads a partition because it has the longest of the compared logs."""
        self._recovered.add(compared)

    def isr(self, name: str, before: tuple[BrokerId, ...], after: tuple[BrokerId, ...]) -> None:
        """Note a change of the ISR of a partition that this broker leads."""
        if set(before) - set(after):
            self._shrunk.add(f"{name} to {_ids(after)}")
        elif len(after) > len(before):
            self._grown.add(f"{name} to {_ids(after)}")

    def report_due(self, seen: ClusterObservation, now_us: int, *, is_alone: bool) -> None:
        """Report the events collected since the last report, if that is due."""
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
            self._info(f"{text}; every replica that had all acked messages came back from an unclean stop")
        if self._shrunk.count:
            self._warn(f"the ISR shrank for {_partitions(self._shrunk, 'led here')}")
        if self._grown.count:
            self._info(f"the ISR grew for {_partitions(self._grown, 'led here')}")

    def _tell_cluster(self, before: ClusterObservation, now: ClusterObservation) -> None:
        if before.has_majority and not now.has_majority:
            self._warn(f"no majority of the voters {_ids(now.voters)} is reachable: no leader can be elected")
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
        self._outbox.step.news.append(ClusterLogLine(text.rstrip(","), is_warning=False))

    def _warn(self, text: str) -> None:
        self._outbox.step.news.append(ClusterLogLine(text, is_warning=True))


def _partitions(named: _Named, how: str = "") -> str:
    return f"{named.count} partition{'s' if named.count > 1 else ''}{f' {how}' if how else ''}: {named}"


def _ids(brokers: Iterable[BrokerId]) -> str:
    return ", ".join(map(str, brokers))
