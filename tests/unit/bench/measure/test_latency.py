"""A latency run: what makes it void, what its rounds say together."""

from __future__ import annotations

import msgspec
import pytest

from penstock.base.errors import OperationalError
from penstock_bench.load.content import Content
from penstock_bench.load.latency_receiver import Received
from penstock_bench.load.latency_sender import Sent
from penstock_bench.load.schedule import SchedulePlan
from penstock_bench.measure import latency_summary
from penstock_bench.measure.histogram import Latencies
from penstock_bench.measure.latency import (
    ACK,
    CONSUMER,
    LATE,
    LatencyLoad,
    LatencyMeasurement,
    histograms_of,
    missing_of,
    untrue,
)
from penstock_bench.measure.rounds import Measurement, interleave
from penstock_bench.systems.system import MeasuredLog
from tests.extent import each_change

CONTENT = Content(3, 768, 42, 43)
OTHER = Content(3, 768, 41, 43)
GAVE_UP_NS = 50_000


class Stored(MeasuredLog):
    """A log that holds what it is told to hold."""

    def __init__(self, content: Content | None) -> None:
        self.content = content

    def publish(self, load: object) -> None:  # type: ignore[override]
        raise NotImplementedError

    def read_back(self, *, ordered: bool) -> Content | None:
        return self.content


def sent_of(acked: list[int], *, errors: int = 0) -> Sent:
    due = [1_000 * (number + 1) for number in range(len(acked))]
    first_error = "503 no responders" if errors else ""
    return Sent(due, acked, [7] * len(acked), 0, errors, first_error, CONTENT, 0.1, GAVE_UP_NS)


def received_of(arrived: list[int], content: Content = CONTENT) -> Received:
    return Received(arrived, content, 0.1, GAVE_UP_NS)


ALL_ACKED = [1_500, 2_400, 9_000]


def test_a_run_is_true_if_all_was_acked_delivered_and_stored() -> None:
    assert untrue(Stored(CONTENT), sent_of(ALL_ACKED), received_of(ALL_ACKED)) is None
    assert untrue(Stored(None), sent_of(ALL_ACKED), None) is None  # an echo stores nothing


@pytest.mark.parametrize(
    ("stored", "sent", "received", "why"),
    [
        (CONTENT, sent_of([1_500, -1, 9_000], errors=1), received_of(ALL_ACKED), "no responders"),
        (Content(2, 512, 42, 43), sent_of(ALL_ACKED), received_of(ALL_ACKED), "3 messages were acked, 2 came back"),
        (Content(1, 256, 42, 43), sent_of([1_500, 0, 9_000]), None, "2 messages were acked and 3 sent, 1 came back"),
        (Content(4, 999, 42, 43), sent_of([1_500, 0, 9_000]), None, "2 messages were acked and 3 sent, 4 came back"),
        (Content(2, 513, 42, 43), sent_of([1_500, 0, 9_000]), None, "2 messages of 256 bytes came back as 513 bytes"),
        (OTHER, sent_of([1_500, 0, 9_000]), None, "another checksum"),
        (
            CONTENT,
            sent_of(ALL_ACKED),
            received_of(ALL_ACKED, OTHER),
            "the consumer: what came back has another checksum",
        ),
        (CONTENT, sent_of(ALL_ACKED), received_of([1, 0, 2], Content(2, 512, 42, 43)), "left out message 1"),
        (CONTENT, sent_of(ALL_ACKED), received_of([1, 2, 0], Content(2, 511, 42, 43)), "the consumer: 2 messages of"),
        (OTHER, sent_of(ALL_ACKED), received_of(ALL_ACKED), "another checksum"),
    ],
)
def test_what_is_not_true_is_void(stored: Content, sent: Sent, received: Received, why: str) -> None:
    assert why in (untrue(Stored(stored), sent, received) or "")


STALLED = sent_of([1_500, 2_400, 0])
BEHIND = received_of([1_500, 2_500, 0], Content(2, 512, 40, 41))


@pytest.mark.parametrize("stored", [CONTENT, Content(2, 512, 40, 41)])
def test_a_round_with_a_missing_ack_stays_whether_the_message_was_stored_or_not(stored: Content) -> None:
    assert untrue(Stored(stored), STALLED, BEHIND) is None
    assert untrue(Stored(CONTENT), sent_of(ALL_ACKED), BEHIND) is None  # the consumer alone fell behind


def test_what_is_missing_counts_as_the_time_that_was_waited_for_it() -> None:
    plan = SchedulePlan(size=256, rate_per_s=1e6, measured=2, warm_up=1, seed=1)
    samples = {path: Latencies.decode(one) for path, one in histograms_of(plan, STALLED, BEHIND).items()}
    assert {path: one.count for path, one in samples.items()} == {ACK: 2, CONSUMER: 2, LATE: 2}
    for path in (ACK, CONSUMER):
        assert samples[path].max_us == pytest.approx((GAVE_UP_NS - 3_000) / 1_000, rel=1e-2)
    assert missing_of(plan, STALLED, BEHIND) == {ACK: 1, CONSUMER: 1}
    assert missing_of(plan, sent_of([0, 2_400, 9_000]), None) == {}  # in the warm-up


def test_what_the_connection_never_took_has_no_delay_of_the_sender() -> None:
    plan = SchedulePlan(size=256, rate_per_s=1e6, measured=2, warm_up=1, seed=1)
    blocked = msgspec.structs.replace(STALLED, content=Content(2, 512, 40, 41))
    samples = {path: Latencies.decode(one) for path, one in histograms_of(plan, blocked, None).items()}
    assert {path: one.count for path, one in samples.items()} == {ACK: 2, LATE: 1}


def test_the_first_messages_are_not_measured_and_all_count_from_when_they_were_due() -> None:
    plan = SchedulePlan(size=256, rate_per_s=1e6, measured=2, warm_up=1, seed=1)
    found = histograms_of(plan, sent_of(ALL_ACKED), received_of([1_500, 3_000, 10_000]))
    samples = {path: Latencies.decode(encoded) for path, encoded in found.items()}
    assert {path: one.count for path, one in samples.items()} == {ACK: 2, CONSUMER: 2, LATE: 2}
    assert samples[ACK].max_us == pytest.approx(6.0, rel=1e-3)
    assert samples[CONSUMER].max_us == pytest.approx(7.0, rel=1e-3)
    assert CONSUMER not in histograms_of(plan, sent_of(ALL_ACKED), None)


def test_a_load_has_a_second_of_warm_up() -> None:
    plan = LatencyLoad(size=1_000, rate_per_s=50, seconds=30).plan(seed=3)
    assert (plan.warm_up, plan.measured, plan.size, plan.seed) == (50, 1_500, 1_000, 3)


def round_of(system: str, number: int, us: int, *, samples: int = 1_000, void: str | None = None) -> Measurement:
    histograms = {} if void else {ACK: Latencies([us * 1_000] * samples).encode()}
    return LatencyMeasurement(system=system, round_number=number, histograms=histograms, void=void, held=number)


def compared(measurements: list[Measurement]) -> latency_summary.LatencyComparison:
    titles = {"a": "A", "b": "B"}
    return latency_summary.compared("256 bytes", LatencyLoad(), titles, measurements, [("a", "b")])


def test_rounds_say_more_together_than_alone() -> None:
    rounds = [round_of(name, number, us) for number in range(10) for name, us in (("a", 300), ("b", 200))]
    found = compared(rounds)
    ratios = found.ratios["a / b"][ACK]
    assert ratios["99"].pooled == pytest.approx(1.5, rel=1e-2)
    assert ratios["99"].rounds is not None
    assert ratios["99"].rounds.rounds == 10
    assert ratios["99.9"].pooled == pytest.approx(1.5, rel=1e-2)
    assert ratios["99.9"].rounds is None
    assert "99.99" not in ratios
    assert found.systems["a"].paths[ACK].samples == 10_000
    assert found.systems["a"].held == 45


def test_a_ratio_lies_between_the_least_and_the_greatest_of_its_rounds() -> None:
    # The slow ones are all of one round: as one, all rounds say 5 ×, where four of five say 1 ×.
    rounds = [round_of("a", number, 1_000 if number == 4 else 200) for number in range(5)]
    found = compared([*rounds, *(round_of("b", number, 200) for number in range(5))]).ratios["a / b"][ACK]["99"]
    assert found.pooled > 4.9
    assert found.ratio == found.rounds
    assert found.ratio.low <= found.ratio.median <= found.ratio.high
    assert found.ratio.median == pytest.approx(1.0)
    alone = latency_summary.LatencyRatio(2.0, None).ratio
    assert (alone.median, alone.rounds, alone.pooled) == (2.0, 1, True)


def test_a_void_round_says_nothing_even_if_it_has_samples() -> None:
    rounds = [round_of(name, number, us) for number in range(2) for name, us in (("a", 300), ("b", 200))]
    broken = [msgspec.structs.replace(round_of(name, 2, us), void="no") for name, us in (("a", 9_000), ("b", 200))]
    found = compared([*rounds, *broken]).ratios["a / b"][ACK]["50"]
    assert found.ratio.rounds == 2
    assert found.ratio.high < 2


def test_where_the_senders_delay_is_much_of_a_percentile_that_is_known() -> None:
    slow, fast = (
        msgspec.structs.replace(one, histograms=one.histograms | {LATE: Latencies([100_000] * 1_000).encode()})
        for one in (round_of("a", 0, 301), round_of("b", 0, 200))
        if isinstance(one, LatencyMeasurement)
    )
    systems = compared([slow, fast]).systems
    assert latency_summary.sender_share(systems["b"], ACK, "99") == pytest.approx(0.5, rel=1e-2)
    assert [latency_summary.is_senders(systems[name], ACK, "99") for name in "ab"] == [False, True]
    assert not latency_summary.is_senders(systems["b"], LATE, "99")
    assert not latency_summary.is_senders(systems["b"], ACK, "99.9")  # not said
    assert not latency_summary.is_senders(systems["b"], CONSUMER, "50")


def test_void_rounds_are_told_and_not_used() -> None:
    failed = Measurement(system="a", round_number=1, void="nats-server is gone")
    found = compared([round_of("a", 0, 300), round_of("b", 0, 200), failed, round_of("b", 1, 200), round_of("b", 2, 1)])
    summary = found.systems["a"]
    assert (summary.rounds, summary.void, summary.void_reason) == (1, 1, "nats-server is gone")
    ratio = found.ratios["a / b"][ACK]["50"]
    assert ratio.rounds is not None
    assert ratio.rounds.rounds == 1
    assert len(found.measurements) == 5
    assert found.void_rounds == {"a / b": 2}  # a's second failed, its third is not there


def test_what_is_missing_is_told_of_all_rounds() -> None:
    rounds = [msgspec.structs.replace(round_of("a", number, 300), missing={ACK: 2}) for number in range(2)]
    found = compared([*rounds, round_of("b", 0, 200), round_of("b", 1, 200)])
    assert found.systems["a"].missing == {ACK: 4}
    assert found.systems["b"].missing == {}
    assert found.void_rounds == {}


def test_a_system_without_a_true_round_has_no_figures() -> None:
    found = compared([round_of("a", 0, 1, void="it did not keep up"), round_of("b", 0, 200)])
    assert found.systems["a"].paths == {}
    assert found.ratios["a / b"] == {}


@each_change
def test_a_run_that_fails_is_a_void_round() -> None:
    def fails(round_number: int) -> Measurement:
        raise OperationalError("no")

    (measured,) = interleave({"a": fails}, rounds=1, warm_up=False, before=lambda: None)
    assert compared([measured]).systems["a"].void_reason == "no"
