"""How long requests over the socket API take, and how many end with an error."""

from __future__ import annotations

from collections import Counter

from penstock.base.errors import ErrorCode
from penstock.base.meters import Histogram
from penstock.messages import Api

_UNKNOWN = "unknown"
_NAMES = {int(api): api.name.lower() for api in Api}
_CODES = frozenset(str(code) for code in ErrorCode)


def name_of(api: int) -> str:
    """Of a request, by its number; whatever a client sends has one of few names."""
    return _NAMES.get(api, _UNKNOWN)


class RequestMeters:
    """One call for a request."""

    def __init__(self) -> None:
        self.seconds: dict[int, Histogram] = {}  # in µs, by the number of the request
        self.errors: Counter[tuple[str, str]] = Counter()  # name of the request, code

    def answered(self, api: int, took_us: int) -> None:
        """A request was answered."""
        if (histogram := self.seconds.get(api)) is None:
            histogram = self.seconds[api] = Histogram.of_times()
        histogram.add(max(0, took_us))

    def failed(self, api: int, code: str) -> None:
        """It was answered with an error."""
        self.errors[name_of(api), str(code) if code in _CODES else _UNKNOWN] += 1
