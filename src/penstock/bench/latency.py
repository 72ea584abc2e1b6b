"""`penstock bench latency`: how long a message takes, at a fixed rate, to be acked and to reach a consumer.

Rules: every system gets the same messages at the same moments of the same schedule, from the same sender; all measured
sizes run in interleaved rounds. A run counts only if it is true: every message was acked and none refused; what the
consumer received and what the log holds are what was sent. A percentile is said only where enough samples lie beyond it
(see `histogram`): one round of 30 seconds at 50/s says up to the 99th, and what all rounds say together goes further.

| figure              | from                                      | until                                            |
|---------------------|-------------------------------------------|--------------------------------------------------|
| publish → ack       | when the message was due                  | its ack has come back through NATS to the sender |
| publish → consumer  | the same                                  | a consumer that follows the log has the value    |
| the sender's delay  | the same, or when its connection was free | the sender gave the message to its socket        |

Sender and consumer share one clock, because they share the machine; both run while either is measured.
"""

from __future__ import annotations

from contextlib import ExitStack

import msgspec

from penstock.base import limits
from penstock.base.errors import OperationalError
from penstock.bench import worker
from penstock.bench.content import difference
from penstock.bench.histogram import Latencies, latencies_ns
from penstock.bench.latency_receiver import Received, ReceiveTask, follow_jetstream, follow_penstock
from penstock.bench.latency_sender import SendTask, Sent, send
from penstock.bench.processes import Child, cpu_seconds_of
from penstock.bench.rounds import Measure, Measurement
from penstock.bench.schedule import Plan
from penstock.bench.systems import JetStreamLog, Log, NatsLog, PenstockLog, System
from penstock.broker.settings import parse_address

ACK, CONSUMER, LATE = "ack", "consumer", "late"
PATHS = {ACK: "publish → ack", CONSUMER: "publish → consumer", LATE: "the sender's own delay"}
WARM_UP_S = 1.0
_ACK_WAIT_S = 30.0
_CONSUMER_WAIT_S = 5.0  # behind the last ack


class LatencyLoad(msgspec.Struct, frozen=True):
    """What is sent in one run."""

    size: int = 256
    rate_per_s: float = 50.0
    seconds: float = 30.0
    consumer: bool = True

    def plan(self, seed: int) -> Plan:
        """The messages, one by one."""
        measured = max(1, round(self.seconds * self.rate_per_s))
        warm_up = max(1, round(WARM_UP_S * self.rate_per_s))
        return Plan(size=self.size, rate_per_s=self.rate_per_s, measured=measured, warm_up=warm_up, seed=seed)


class LatencyMeasurement(Measurement, frozen=True, kw_only=True):
    """One system in one round; `histograms` by path, as `Latencies.encode` gives them. `value` is the mean ack, µs."""

    histograms: dict[str, str] = msgspec.field(default_factory=dict)
    held: int = 0  # messages that waited in the sender, because the connection had not taken the one before


def latency_measure(name: str, system: System, load: LatencyLoad) -> Measure:
    """Measures one run, and checks whether it is true."""

    def measure(round_number: int) -> LatencyMeasurement:
        plan = load.plan(seed=round_number + 2)
        with system.log() as log:
            if not isinstance(log, NatsLog):
                raise OperationalError("latency is measured through NATS; this system is published to in another way")
            before = cpu_seconds_of(log.processes)
            sent, received = _run(log, plan, load.consumer)
            after = cpu_seconds_of(log.processes)
            void = untrue(log, sent, received)
        cpu = {one: after[one] - before[one] for one in before} | {"sender": sent.cpu_s}
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
        )

    return measure


def histograms_of(plan: Plan, sent: Sent, received: Received | None) -> dict[str, str]:
    """The measured messages' latencies by path, encoded."""
    kept = slice(plan.warm_up, plan.count)
    found = {
        ACK: latencies_ns(sent.due_ns[kept], sent.acked_ns[kept]),
        LATE: sent.late_ns[kept],
    }
    if received is not None:
        found[CONSUMER] = latencies_ns(sent.due_ns[kept], received.arrived_ns[kept])
    return {path: Latencies(samples).encode() for path, samples in found.items()}


def untrue(log: Log, sent: Sent, received: Received | None) -> str | None:
    """Why a run does not count; None if all was acked, delivered and stored as it was sent."""
    if sent.errors:
        return f"{sent.errors:,} answers were no acks; the first: {sent.first_error}"
    if missing := sum(moment <= 0 for moment in sent.acked_ns):
        return f"it did not keep up: {missing:,} of {len(sent.acked_ns):,} messages had no ack in time"
    if received is not None and (what := difference(sent.content, received.content)) is not None:
        return f"the consumer: {what}"
    found = log.read_back(ordered=True)
    return None if found is None else difference(sent.content, found)


def _run(log: NatsLog, plan: Plan, consumer: bool) -> tuple[Sent, Received | None]:
    seconds_max = plan.duration_s + _ACK_WAIT_S + limits.BENCH_START_S
    with ExitStack() as stack:
        receiver = _receiver(stack, log, plan, seconds_max + _CONSUMER_WAIT_S) if consumer else None
        sent = worker.run(send, SendTask(log.nats, log.subject, plan, _ACK_WAIT_S), timeout_s=seconds_max)
        if receiver is None:
            return sent, None
        line = receiver.next_line(seconds_max)
        return sent, msgspec.json.decode(line, type=Received)


def _receiver(stack: ExitStack, log: NatsLog, plan: Plan, seconds_max: float) -> Child | None:
    """A process that follows the log, ready; None for a log that stores nothing."""
    if isinstance(log, PenstockLog):
        task = ReceiveTask(parse_address(log.client_address), log.stream.name, plan, seconds_max)
        _, process = stack.enter_context(worker.working(follow_penstock, task))
    elif isinstance(log, JetStreamLog):
        task = ReceiveTask(log.nats, log.stream, plan, seconds_max)
        _, process = stack.enter_context(worker.working(follow_jetstream, task))
    else:
        return None
    return process
