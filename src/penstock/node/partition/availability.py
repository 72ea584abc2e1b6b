"""Reasons why a partition stores no messages now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.base.config import Intake
from penstock.base.errors import ErrorCode, RemoteError
from penstock.commitlog import LogState
from penstock.ingest import acks
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.partition_errors import (
    CODES,
    FENCED,
    NOT_LEADER,
    OVER_BUDGET,
    READ_ONLY,
    STORE_FAILED,
    TOO_FEW_REPLICAS,
)

if TYPE_CHECKING:
    from penstock.node.partition.partition import Partition


def unavailable_reason(partition: Partition, budget: InFlightBudget) -> tuple[acks.AckError, str] | None:
    """Return the error for publishers and the reason to count; None if the partition takes messages."""
    if not partition.stream.takes:
        reason = str(partition.stream.intake)
        return acks.not_taken(partition.stream.name, reason.replace("_", " ")), reason
    return _why_unable(partition, budget)


def append_at_refusal(partition: Partition, budget: InFlightBudget) -> RemoteError | None:
    """Return the error for an append with its own offsets and timestamps; None if it can be taken."""
    if partition.stream.intake is not Intake.PAUSED:
        text = f"nothing was stored: stream {partition.stream.name!r} is {partition.stream.intake}, not paused: offsets"
        return RemoteError(ErrorCode.BAD_REQUEST, f"{text} can be given only while no other client can append")
    if (unable := _why_unable(partition, budget)) is None:
        return None
    error, reason = unable
    return RemoteError(CODES[reason], error.description)


def _why_unable(partition: Partition, budget: InFlightBudget) -> tuple[acks.AckError, str] | None:
    """Return the same, whatever the stream's intake."""
    if partition.log.state is not LogState.WRITABLE:
        reason = FENCED if partition.log.state is LogState.FENCED else READ_ONLY
        return acks.store_failed(f"the stream is {reason}; see its status"), reason
    if partition.leadership is None:
        return acks.unavailable("this broker does not lead the stream now"), NOT_LEADER
    if not partition.leadership.accepts:
        few = acks.not_enough_replicas(len(partition.leadership.isr), partition.leadership.min_isr)
        return few, TOO_FEW_REPLICAS
    if not partition.leads:
        return acks.store_failed(partition.cannot_lead), STORE_FAILED
    if partition.in_flight.size_bytes > budget.partition_bytes_max:
        return acks.unavailable("too much waits for the disk"), OVER_BUDGET
    return None
