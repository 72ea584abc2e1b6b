"""What the log says of the cluster: each news once, together, a handful of lines a second."""

from __future__ import annotations

from penstock.base import limits
from penstock.base.ids import BrokerId
from penstock.node.quorum.cluster_events import ClusterEventLog, ClusterObservation
from penstock.node.step import Outbox
from tests.unit.node.members import Brokers

WELL = ClusterObservation(BrokerId(1), True, frozenset({BrokerId(1), BrokerId(2)}), (BrokerId(1), BrokerId(2)))


class Log:
    """A chronicle of broker 1, and what it has told."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.chronicle = ClusterEventLog(BrokerId(1), self.outbox)
        self.now_us = 0
        self.said(WELL)

    def said(self, seen: ClusterObservation, *, is_alone: bool = False) -> list[str]:
        """What the next look tells; warnings with a mark."""
        self.now_us += limits.CLUSTER_LOG_INTERVAL_MS * 1_000
        self.chronicle.report_due(seen, self.now_us, is_alone=is_alone)
        return [f"{'! ' if one.is_warning else ''}{one.text}" for one in self.outbox.take().news]


def test_many_partitions_are_one_line_and_what_is_told_is_told_once() -> None:
    log = Log()
    for number in range(12):
        log.chronicle.led(f"s/{number}")
    log.chronicle.ended("t/0")
    assert log.said(WELL) == ["stops leading 1 partition: t/0", "leads 12 partitions more: s/0; s/1; s/2; …"]
    assert log.said(WELL) == []


def test_in_sync() -> None:
    log = Log()
    log.chronicle.isr("s/0", (BrokerId(1), BrokerId(2)), (BrokerId(1),))
    log.chronicle.isr("s/1", (BrokerId(1),), (BrokerId(1), BrokerId(2)))
    assert log.said(WELL) == [
        "! the ISR shrank for 1 partition led here: s/0 to 1",
        "the ISR grew for 1 partition led here: s/1 to 1, 2",
    ]


def test_who_leads_who_is_there_and_whether_they_are_enough() -> None:
    log = Log()
    lost = ClusterObservation(None, False, frozenset({BrokerId(1)}), WELL.voters)
    assert log.said(lost) == [
        "! no majority of the voters 1, 2 is reachable: no leader can be elected",
        "! the metadata leader is lost: it was broker 1",
        "! broker 2 is away",
    ]
    three = (*WELL.voters, BrokerId(3))
    assert log.said(WELL._replace(voters=three, leader=BrokerId(2))) == [
        "a majority of the voters 1, 2, 3 is reachable",
        "the metadata leader is broker 2",
        "broker 2 is there",
        "broker 3 votes on the metadata: voters 1, 2, 3",
    ]
    assert log.said(WELL) == [
        "the metadata leader is broker 1, this one",
        "! broker 3 has no vote any more: voters 1, 2",
    ]


def test_nothing_is_told_between_two_looks_or_by_who_is_alone() -> None:
    log = Log()
    log.chronicle.led("s/0")
    log.chronicle.report_due(WELL, log.now_us + 1, is_alone=False)
    assert log.outbox.take().news == []
    assert log.said(WELL, is_alone=True) == []
    assert log.said(WELL) == []


def test_brokers_of_a_cluster_tell_their_news() -> None:
    brokers = Brokers(1, 2, 3)
    brokers.run(5_000)
    brokers.leader.create("s", subject="s", replicas=3)
    brokers.run(2_000)
    led = brokers.led("s")
    assert ("leads 1 partition more: s/0", False) in led.news
    victim = next(one for one in brokers.members.values() if one not in (led, brokers.leader))
    led.news.clear()
    brokers.kill(victim.broker_id)
    brokers.run(6_000)
    away = [one for one in led.news if one[1]]
    left = ", ".join(str(one) for one in brokers.partition("s").isr)
    assert away == [
        (f"the ISR shrank for 1 partition led here: s/0 to {left}", True),
        (f"broker {victim.broker_id} is away", True),
    ]
