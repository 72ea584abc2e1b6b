"""Requests the status of every broker at its advertised address, all at the same time, and reads its clock."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from penstock.base.errors import PenstockError
from penstock.client.blocking.client import Client
from penstock.doctor.cluster_state import short_reason
from penstock.messages import BrokerInfo, StatusResponse

_AT_ONCE = 16  # brokers

_CLOCK_READINGS = 3  # the one with the shortest round trip is used


@dataclass(frozen=True, slots=True)
class Asked:
    """Result for one broker. `status` is None if it did not answer; then `failure` has the reason."""

    broker: BrokerInfo
    status: StatusResponse | None = None
    # clock relative to this machine's, ± `uncertain_us`; None: the broker does not report its time
    ahead_us: int | None = None
    uncertain_us: int = 0
    failure: str = ""


def ask_all(client: Client, brokers: Sequence[BrokerInfo], timeout_s: float) -> list[Asked]:
    """Request the status from each of the brokers."""
    if not brokers:
        return []
    with ThreadPoolExecutor(min(len(brokers), _AT_ONCE), "doctor") as threads:
        return list(threads.map(lambda broker: _ask(client, broker, timeout_s), brokers))


def _ask(client: Client, broker: BrokerInfo, timeout_s: float) -> Asked:
    readings: list[Asked] = []
    try:
        for _ in range(_CLOCK_READINGS):
            sent_us = time.time_ns() // 1_000
            status = client.status(server=broker.address, timeout=timeout_s)
            got_us = time.time_ns() // 1_000
            if status.broker_id != broker.broker_id:
                return Asked(broker, failure=f"broker {status.broker_id} answers there")
            readings.append(_read(broker, status, sent_us, got_us))
    except (PenstockError, OSError) as error:
        return Asked(broker, failure=short_reason(error, broker.address))
    return min(readings, key=lambda one: one.uncertain_us)


def _read(broker: BrokerInfo, status: StatusResponse, sent_us: int, got_us: int) -> Asked:
    if status.now_us is None:
        return Asked(broker, status)
    middle_us, half_us = (sent_us + got_us) // 2, max(0, got_us - sent_us + 1) // 2
    return Asked(broker, status, status.now_us - middle_us, half_us)
