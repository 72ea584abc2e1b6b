"""Publishes one message into each of many streams; messages without an ack are sent again until all are acked.

Rules: One connection to NATS and one inbox; the last token of a reply subject holds the numbers of the `publish` call
and of the stream. A message is resent after a refusal or no responders (after RETRY_S), or without any answer (after
SILENT_S). A late ack counts, unless its `publish` call has returned. The time of an ack is taken when it is parsed.
"""

from __future__ import annotations

import heapq
import select
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.nats_socket import NatsSocket, inbox
from penstock_bench.machine import vital

RETRY_S = 0.1
SILENT_S = 1.0
_WINDOW = 500  # messages in flight
_LOOK_S = 0.05


class Acked(msgspec.Struct, frozen=True):
    """An acked message: its value, its offset, and the time of its ack in nanoseconds of the monotonic clock."""

    value: bytes
    offset: int
    acked_ns: int


class _PubAck(msgspec.Struct):
    seq: int = 0
    error: dict[str, Any] | None = None


class Publisher:
    """Publishes to streams by their numbers; `subjects` are by number."""

    def __init__(self, nats: Address, subjects: Mapping[int, str]) -> None:
        self._subjects = subjects
        self._nats = NatsSocket(nats)
        self._inbox = inbox()
        self._turn = 0
        self._nats.send(f"SUB {self._inbox}.* 1\r\n".encode())
        self._nats.barrier()

    def close(self) -> None:
        self._nats.close()

    def publish(self, values: Mapping[int, bytes], timeout_s: float) -> dict[int, list[Acked]]:
        """Publish, and return at least one ack for each number. Raise OperationalError after the time-out."""
        self._turn += 1
        found: dict[int, list[Acked]] = {}
        waiting = [(0.0, number) for number in values]  # a heap of (send time, number)
        heapq.heapify(waiting)
        sent: dict[int, float] = {}  # number → time at which it counts as silent, soonest first
        deadline_s = time.monotonic() + timeout_s
        while len(found) < len(values):
            now_s = time.monotonic()
            if now_s >= deadline_s:
                missing = sorted(values.keys() - found.keys())
                raise OperationalError(f"{len(missing):,} of {len(values):,} streams took no message, as {missing[:5]}")
            vital.check()
            while sent and next(iter(sent.values())) <= now_s:
                number = next(iter(sent))
                del sent[number]
                heapq.heappush(waiting, (now_s, number))
            self._send(values, waiting, sent, now_s)
            if not select.select([self._nats.socket], [], [], _LOOK_S)[0]:
                continue
            for number, acked in self._answers(values):
                sent.pop(number, None)
                if acked is not None:
                    found.setdefault(number, []).append(acked)
                elif number not in found:
                    heapq.heappush(waiting, (time.monotonic() + RETRY_S, number))
        return found

    def _send(
        self, values: Mapping[int, bytes], waiting: list[tuple[float, int]], sent: dict[int, float], now_s: float
    ) -> None:
        frames = []
        while waiting and waiting[0][0] <= now_s and len(sent) < _WINDOW:
            _, number = heapq.heappop(waiting)
            if number not in sent:
                value = values[number]
                head = f"PUB {self._subjects[number]} {self._inbox}.{self._turn}-{number} {len(value)}\r\n"
                frames.append(head.encode() + value + b"\r\n")
                sent[number] = now_s + SILENT_S
        if frames:
            self._nats.send(b"".join(frames))

    def _answers(self, values: Mapping[int, bytes]) -> list[tuple[int, Acked | None]]:
        """Return the answers: each stream's ack, or None after a refusal or no responders."""
        out: list[tuple[int, Acked | None]] = []
        for delivery in self._nats.deliveries():
            turn, _, number_text = delivery.subject.rpartition(b".")[2].decode().partition("-")
            if int(turn) != self._turn:
                continue  # an answer to an earlier call
            ack = _PubAck() if delivery.headers else msgspec.json.decode(delivery.payload, type=_PubAck)
            number = int(number_text)
            is_ack = ack.error is None and ack.seq > 0
            out.append((number, Acked(values[number], ack.seq - 1, time.monotonic_ns()) if is_ack else None))
        return out
