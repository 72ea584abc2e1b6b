"""`penstock bench latency`: time of a message at a fixed rate until its ack, and until a consumer has it.

Rules: Every system gets the same messages at the same times of the same schedule from the same sender; all sizes run in
interleaved rounds. A run counts only if it is verified: no message was refused, and the consumer and the log hold the
sent messages. A missing ack or message does not void the round: its latency is the time waited for it (at least
ACK_WAIT_S), and the number of missing acks and messages is reported. A message without an ack may be stored or not;
then only the number and the total size of the stored messages are compared. A percentile is reported only if enough
samples lie beyond it (see `histogram`): one round of 30 seconds at 50/s gives up to the 99th, all rounds together give
more.

| figure              | from                                      | until                                            |
|---------------------|-------------------------------------------|--------------------------------------------------|
| publish → ack       | the due time of the message               | its ack has come back through NATS to the sender |
| publish → consumer  | the same                                  | a consumer that follows the log has the value    |
| the sender's delay  | the same, or when its connection was free | the sender gave the message to its socket        |

Sender and consumer share the machine's clock. Both run while either is measured.
"""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from penstock.base import limits
from penstock.base.addresses import parse_address
from penstock.base.errors import OperationalError
from penstock_bench.load.content import Content, difference
from penstock_bench.load.latency_receiver import LatencyReceiveTask, Received, follow_jetstream, follow_penstock
from penstock_bench.load.latency_sender import SendTask, Sent, send
from penstock_bench.load.schedule import SchedulePlan
from penstock_bench.machine import worker
from penstock_bench.machine.processes import Child, Stopwatch
from penstock_bench.measure.histogram import Latencies, latencies_ns
from penstock_bench.measure.refusals import refusal
from penstock_bench.measure.rounds import Measure, Measurement
from penstock_bench.systems.system import JetStreamLog, MeasuredLog, NatsLog, PenstockLog, System

ACK, CONSUMER, LATE = "ack", "consumer", "late"
PATHS = {ACK: "publish → ack", CONSUMER: "publish → consumer", LATE: "the sender's own delay"}
WARM_UP_S = 1.0
ACK_WAIT_S = 30.0  # after the last message's due time
_CONSUMER_WAIT_S = 5.0  # the receiver's time-out exceeds the sender's by this


class LatencyLoad(msgspec.Struct, frozen=True):
    """The messages of one run."""

    size: int = 256
    rate_per_s: float = 50.0
    seconds: float = 30.0
    consumer: bool = True

    def plan(self, seed: int) -> SchedulePlan:
        """Return the schedule of the messages."""
        measured = max(1, round(self.seconds * self.rate_per_s))
        warm_up = max(1, round(WARM_UP_S * self.rate_per_s))
        return SchedulePlan(size=self.size, rate_per_s=self.rate_per_s, measured=measured, warm_up=warm_up, seed=seed)


class LatencyMeasurement(Measurement, frozen=True, kw_only=True):
    """One system in one round. `histograms` hold `Latencies.encode` by path. `value` is the mean ack latency in µs."""

    histograms: dict[str, str] = msgspec.field(default_factory=dict)
    held: int = 0  # messages delayed in the sender because the connection had not taken the one before
    missing: dict[str, int] = msgspec.field(default_factory=dict)  # by path; each counts with the time waited for it


def latency_measure(name: str, system: System, load: LatencyLoad) -> Measure:
    """Return a function that measures and verifies one run."""

    def measure(round_number: int) -> LatencyMeasurement:
        plan = load.plan(seed=round_number + 2)
        with system.log() as log:
            if not isinstance(log, NatsLog):
                raise OperationalError("latency is measured through NATS; this system is published to in another way")
            watch = Stopwatch(log.processes)
            sent, received = _run(log, plan, load.consumer)
            _, cpu = watch.read()
            void = untrue(log, sent, received)
        cpu["sender"] = sent.cpu_s
        if received is not None:
            cpu["consumer"] = received.cpu_s
        histograms = {} if void else histograms_of(plan, sent, received)
        return LatencyMeasurement(
            system=name,
            round_number=round_number,
            value=Latencies.decode(histograms[ACK]).mean_us if histograms else 0.0,
            seconds=plan.duration_s,
            messages=plan.measured,
            cpu_seconds=cpu,
            void=void,
            histograms=histograms,
            held=sent.held,
            missing={} if void else missing_of(plan, sent, received),
        )

    return measure


def histograms_of(plan: SchedulePlan, sent: Sent, received: Received | None) -> dict[str, str]:
    """Encode the measured messages' latencies by path. A missing message counts with the time waited for it."""
    due_ns = sent.due_ns[plan.warm_up :]
    found = {
        path: latencies_ns(due_ns, [moment if moment > 0 else gave_up_ns for moment in moments])
        for path, (moments, gave_up_ns) in _moments(plan, sent, received).items()
    }
    found[LATE] = sent.late_ns[plan.warm_up : sent.content.messages]
    return {path: Latencies(samples).encode() for path, samples in found.items()}


def missing_of(plan: SchedulePlan, sent: Sent, received: Received | None) -> dict[str, int]:
    """Count the missing messages by path; omit paths without any."""
    counts = {path: sum(one <= 0 for one in moments) for path, (moments, _) in _moments(plan, sent, received).items()}
    return {path: count for path, count in counts.items() if count}


def _moments(plan: SchedulePlan, sent: Sent, received: Received | None) -> dict[str, tuple[list[int], int]]:
    """Return by path the arrival times of the measured messages, and the time at which waiting ended."""
    found = {ACK: (sent.acked_ns[plan.warm_up :], sent.gave_up_ns)}
    if received is not None:
        found[CONSUMER] = (received.arrived_ns[plan.warm_up :], received.gave_up_ns)
    return found


def untrue(log: MeasuredLog, sent: Sent, received: Received | None) -> str | None:
    """Return why a run does not count; None if acks, deliveries and log match what was sent."""
    if sent.errors:
        return f"{sent.errors:,} answers were no acks; the first: {refusal(sent.first_error)}"
    if received is not None and (what := _undelivered(sent, received)) is not None:
        return f"the consumer: {what}"
    found = log.read_back(ordered=True)
    return None if found is None else _unstored(sent, found)


def _undelivered(sent: Sent, received: Received) -> str | None:
    """Return the error of the consumer, or None. Missing the last messages is lag, and a gap before them an error."""
    if received.content.messages >= sent.content.messages:
        return difference(sent.content, received.content)
    last = max((index for index, moment in enumerate(received.arrived_ns) if moment > 0), default=-1)
    for index in range(last):
        if received.arrived_ns[index] <= 0 < sent.acked_ns[index]:
            return f"it left out message {index:,}, and went on"
    return _wrong_bytes(sent, received.content)


def _unstored(sent: Sent, found: Content) -> str | None:
    """Return the error of the log, or None: it must hold all acked messages, and only sent ones."""
    acked = sum(moment > 0 for moment in sent.acked_ns)
    if found.messages == sent.content.messages or acked == sent.content.messages:
        return difference(sent.content, found)
    if not acked <= found.messages <= sent.content.messages:
        return f"{acked:,} messages were acked and {sent.content.messages:,} sent, {found.messages:,} came back"
    return _wrong_bytes(sent, found)


def _wrong_bytes(sent: Sent, found: Content) -> str | None:
    """Compare only the total size: the checksum of an arbitrary part of the messages is unknown."""
    size = sent.content.value_bytes // sent.content.messages
    if found.value_bytes == found.messages * size:
        return None
    return f"{found.messages:,} messages of {size:,} bytes came back as {found.value_bytes:,} bytes"


def _run(log: NatsLog, plan: SchedulePlan, consumer: bool) -> tuple[Sent, Received | None]:
    seconds_max = plan.duration_s + ACK_WAIT_S + limits.BENCH_START_S
    with ExitStack() as stack:
        receiver = _receiver(stack, log, plan, seconds_max + _CONSUMER_WAIT_S) if consumer else None
        sent = worker.run(send, SendTask(log.nats, log.subject, plan, ACK_WAIT_S), timeout_s=seconds_max)
        if receiver is None:
            return sent, None
        line = receiver.next_line(seconds_max)
        return sent, msgspec.json.decode(line, type=Received)


def _receiver(stack: ExitStack, log: NatsLog, plan: SchedulePlan, seconds_max: float) -> Child | None:
    """Start a process that follows the log; return it when ready, or None for a log that stores nothing."""
    if isinstance(log, PenstockLog):
        task = LatencyReceiveTask(parse_address(log.client_address), log.stream.name, plan, seconds_max)
        _, process = stack.enter_context(worker.working(follow_penstock, task))
    elif isinstance(log, JetStreamLog):
        task = LatencyReceiveTask(log.nats, log.stream, plan, seconds_max)
        _, process = stack.enter_context(worker.working(follow_jetstream, task))
    else:
        return None
    return process
