"""Times to live where clocks step, or those of leaders differ: what goes late or early, and by how much.

An expiry is decided by the clock of the partition's leader, and counts from the time that the leader of then has given
the message. So a message goes as much too late or too early as the two clocks differ, and no more.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.clock import Now
from tests.unit.node.harness import Clock
from tests.unit.node.members import Brokers, formed
from tests.unit.node.test_delete_markers import BUCKET, go_on, marked, publish, rows, started
from tests.unit.node.test_markers_of_replicas import bucket, keys, put
from tests.unit.node.test_survey_marks import partition

HOUR_MS = 3_600_000


def test_the_time_of_a_marker_is_within_a_second_behind_the_end_of_its_message() -> None:
    broker = started(**BUCKET)
    for number in range(5):
        publish(broker, f"{number}", b"gone", f"Nats-TTL: {2 + number}")
        go_on(broker, 130, 10)
    go_on(broker, 8_000)
    (log,) = [one.log for one in broker.node._partitions.values() if one.stream.name == "orders"]
    times = [header.max_timestamp_us for header, _ in log.view().batches(0, log.log_end) for _ in range(header.count)]
    assert len(times) == 10
    late_us = [times[5 + number] - times[number] - (2 + number) * 1_000_000 for number in range(5)]
    assert all(0 <= one < 1_000_000 for one in late_us), late_us


def test_a_clock_that_steps_forward_is_heard_of_within_a_minute() -> None:
    broker = started(**BUCKET)
    publish(broker, "a", b"gone", "Nats-TTL: 10m")
    publish(broker, "b", b"kept", "Nats-TTL: 30m")
    go_on(broker, 2_000)
    broker.clock.wall_us += 11 * 60_000_000
    go_on(broker, limits.EXPIRY_WAIT_MS_MAX + 1_000)
    assert rows(broker) == [("b", b"kept"), ("a", b"")]


def test_a_clock_that_is_set_back_lets_nothing_go_early() -> None:
    broker = started(**BUCKET)
    publish(broker, "a", b"gone", "Nats-TTL: 60")
    go_on(broker, 2_000)
    broker.clock.set_back_ms(300_000)
    publish(broker, "b", b"of a later time", "Nats-TTL: 60")
    go_on(broker, 355_000, 1_000)
    assert len(rows(broker)) == 2
    go_on(broker, 10_000)
    assert sorted(marked(broker)) == ["a", "b"]
    go_on(broker, 12_000)
    assert rows(broker) == []


class Apart(Clock):
    """The clock of one broker, whose calendar is ahead of the others' by a fixed time."""

    def __init__(self, others: Clock, ahead_ms: int) -> None:
        super().__init__()
        self._others, self._ahead_us = others, ahead_ms * 1_000

    @property
    def now(self) -> Now:
        """Both times."""
        others = self._others.now
        return Now(others.wall_us + self._ahead_us, others.elapsed_us)


def failed_over(ahead_ms: int) -> Brokers:
    """Keys with times to live of 20 s, 100 s and 2 h, put by a leader whose clock is so far ahead of the next one's."""
    brokers = bucket(formed())
    first = brokers.led("prices")
    first.clock = Apart(brokers.clock, ahead_ms)
    for key, ttl_s in (("a", 20), ("b", 100), ("c", 7_200)):
        put(brokers, key, str(ttl_s))
    brokers.kill(first.broker_id)
    brokers.run(limits.SESSION_MS + 3_000)
    assert brokers.led("prices") is not first
    return brokers


def gone(brokers: Brokers) -> list[str]:
    """Keys whose markers all replicas show."""
    (one, other) = keys(brokers)
    assert one == other
    return [key for key, is_marker in one if is_marker]


def pass_s(brokers: Brokers, seconds: int) -> None:
    """So much time passes at once, and then some seconds for what is due."""
    brokers.clock.advance_ms(1_000 * seconds)
    brokers.run(3_000)


def test_behind_a_leader_whose_clock_was_an_hour_ahead_all_goes_an_hour_late() -> None:
    brokers = failed_over(HOUR_MS)
    put(brokers, "new", "5")  # it gets the last time of the log, as times never fall
    pass_s(brokers, 120)
    assert gone(brokers) == []
    pass_s(brokers, 3_600)
    assert gone(brokers) == ["a", "b", "new"]
    pass_s(brokers, 7_200 - 120)
    assert "c" in gone(brokers) or all(key != "c" for one in keys(brokers) for key, _ in one)


def test_behind_a_leader_whose_clock_was_an_hour_behind_what_lives_shorter_goes_at_once() -> None:
    brokers = failed_over(-HOUR_MS)
    assert gone(brokers) == ["a", "b"]
    put(brokers, "new", "50")
    pass_s(brokers, 30)
    assert gone(brokers) == ["a", "b"]
    pass_s(brokers, 3_400)
    assert "c" not in gone(brokers)
    pass_s(brokers, 200)
    assert "c" in gone(brokers), "an hour early"


def test_the_times_of_markers_never_fall_behind_a_leader_whose_clock_was_ahead() -> None:
    brokers = failed_over(HOUR_MS)
    pass_s(brokers, 3_700)
    assert gone(brokers) == ["a", "b"]
    for member in brokers.members.values():
        view = partition(member).log.view()
        times = [header.max_timestamp_us for header, _ in view.batches(view.log_start, view.log_end)]
        assert times == sorted(times)
        assert times[2] < times[-1] <= brokers.clock.wall_us, "the markers are later than what was put"
