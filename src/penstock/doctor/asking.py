"""Requests the status of every broker at its advertised address, and reads its clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.base.errors import PenstockError
from penstock.client.blocking.client import Client
from penstock.messages import BrokerInfo, StatusResponse

Opens = Callable[[str], AbstractContextManager[tuple[Client, float]]]
"""Connects to one address; yields the client and its time-out in seconds."""

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


def ask(opens: Opens, broker: BrokerInfo) -> Asked:
    """Request the status from exactly that broker."""
    readings: list[Asked] = []
    try:
        with opens(broker.address) as (client, seconds):
            for _ in range(_CLOCK_READINGS):
                sent_us = time.time_ns() // 1_000
                status = client.status(timeout=seconds)
                got_us = time.time_ns() // 1_000
                if status.broker_id != broker.broker_id:
                    return Asked(broker, failure=f"broker {status.broker_id} answers there")
                readings.append(_read(broker, status, sent_us, got_us))
    except (PenstockError, OSError) as error:
        return Asked(broker, failure=str(error))
    return min(readings, key=lambda one: one.uncertain_us)


def _read(broker: BrokerInfo, status: StatusResponse, sent_us: int, got_us: int) -> Asked:
    if status.now_us is None:
        return Asked(broker, status)
    middle_us, half_us = (sent_us + got_us) // 2, max(0, got_us - sent_us + 1) // 2
    return Asked(broker, status, status.now_us - middle_us, half_us)
