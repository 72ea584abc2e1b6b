"""Admission of one NATS read to a partition, by the partition's state and by what its leader knows of the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.base.clock import Now
from penstock.hot.message_group import MessageGroup
from penstock.ingest import acks
from penstock.ingest.admission import Admission, AdmissionRules, admit, refuse_all
from penstock.ingest.last_sequences import BEFORE_ALL
from penstock.node.partition.availability import unavailable_reason
from penstock.node.partition.dedup import read_ids
from penstock.node.partition.in_flight import InFlightBudget
from penstock.node.partition.last_sequences import read_end, read_older
from penstock.node.partition.partition_errors import OVER_BUDGET, STORE_FAILED
from penstock.node.step import Step

if TYPE_CHECKING:
    from penstock.node.partition.partition import Partition


def admit_to_partition(
    partition: Partition,
    rules: AdmissionRules,
    budget: InFlightBudget,
    group: MessageGroup,
    now: Now,
    step: Step,
    *,
    must: bool,
) -> Admission | None:
    """Admit or refuse the messages of `group`; return None if they must wait until message ids or last offsets are read
    from the log. With `must` they do not wait: they are refused.
    """
    if (closed := unavailable_reason(partition, budget)) is not None:
        return refuse_all(group, rules, *closed)
    dedup = partition.dedup
    now_us = partition.timestamp_us(now)
    ids = None if dedup is None else dedup.ids(now_us)
    lasts = partition.lasts
    log_start = 0 if lasts is None else partition.log_start
    if partition.keys is not None and partition.key.partition >= partition.stream.counts[0]:
        log_start = BEFORE_ALL
    admission = admit(group, rules, log_start=log_start, log_end=partition.log.log_end, ids=ids, lasts=lasts)
    if lasts is not None and admission.asks_older:
        read_older(partition, lasts, step)
    if not (admission.needs_ids or admission.needs_lasts):
        if (tracer := partition.meters.tracer) is not None:
            tracer.coming(partition, admission.rows, now.elapsed_us)
        return admission
    if admission.needs_ids and dedup is not None and dedup.failure:
        partition.dedup = None  # the next message has them read again
        return refuse_all(group, rules, acks.store_failed(dedup.failure), STORE_FAILED)
    if must:
        return refuse_all(group, rules, acks.unavailable("what the message depends on is being read"), OVER_BUDGET)
    if admission.needs_ids:
        read_ids(partition, rules, now_us, step)
    if admission.needs_lasts:
        read_end(partition, step)
    return None
