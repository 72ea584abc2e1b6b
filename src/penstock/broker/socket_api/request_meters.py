"""Latencies and errors of requests over the socket API."""

from __future__ import annotations

from collections import Counter

from penstock.base.errors import ErrorCode
from penstock.base.meters import Histogram
from penstock.messages import Api

_UNKNOWN = "unknown"
_NAMES = {int(api): api.name.lower() for api in Api}
_CODES = frozenset(str(code) for code in ErrorCode)


def name_of(api: int) -> str:
    """Return the name of an API; unknown numbers share one name, so that clients cannot add labels."""
    return _NAMES.get(api, _UNKNOWN)


class RequestMeters:
    """Latency histograms and error counters."""

    def __init__(self) -> None:
        self.seconds: dict[int, Histogram] = {}  # in µs, by API number
        self.errors: Counter[tuple[str, str]] = Counter()  # (API name, error code) → count

    def answered(self, api: int, took_us: int) -> None:
        if (histogram := self.seconds.get(api)) is None:
            histogram = self.seconds[api] = Histogram.of_times()
        histogram.add(max(0, took_us))

    def failed(self, api: int, code: str) -> None:
        self.errors[name_of(api), str(code) if code in _CODES else _UNKNOWN] += 1
