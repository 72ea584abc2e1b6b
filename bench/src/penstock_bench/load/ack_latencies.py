"""Ack latencies of a publisher on schedule, for experiments that measure something else beside it."""

from __future__ import annotations

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.latency_sender import SendTask, send
from penstock_bench.load.schedule import SchedulePlan
from penstock_bench.machine import worker


def ack_latencies(
    address: Address, subject: str, rate: int, seconds: float, size: int, timeout_s: float
) -> list[float]:
    """Publish from another process; return the seconds until each ack, counted from when its message was due."""
    plan = SchedulePlan(size=size, rate_per_s=rate, measured=max(1, round(seconds * rate)), warm_up=0, seed=1)
    sent = worker.run(send, SendTask(address, subject, plan, timeout_s), timeout_s=plan.duration_s + 2 * timeout_s)
    if sent.errors or 0 in sent.acked_ns:
        raise OperationalError(
            f"{sent.errors} errors, {sent.acked_ns.count(0)} messages without an ack: {sent.first_error}"
        )
    return [(acked - due) / 1e9 for due, acked in zip(sent.due_ns, sent.acked_ns, strict=True)]


def p99(latencies_s: list[float]) -> float:
    """Return the 99th percentile."""
    return sorted(latencies_s)[len(latencies_s) * 99 // 100]
