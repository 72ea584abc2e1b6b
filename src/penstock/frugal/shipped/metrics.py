"""Counters and durations of calls, as a page for Prometheus.

    metrics = CallMetrics()
    client = OrdersClient(transport, middleware=[metrics])
    …
    metrics.page()   # for the program's own HTTP port

Rules: labels are names of the contract and of classes of errors, never data of a call. One object may serve several
clients and servers of one event loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from penstock.base.meters import Histogram
from penstock.frugal.context import Context
from penstock.frugal.errors import FrugalError
from penstock.frugal.middleware import Call, Proceed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_US = 1e-6
_CALLS = "penstock_frugal_calls_total"
_SECONDS = "penstock_frugal_call_seconds"
_IN_PROGRESS = "penstock_frugal_calls_in_progress"

_Labels = tuple[str, str, str]  # side, owner, name


class CallMetrics:
    """A middleware that counts calls. `outcome`: "ok", "exception" for one that is not ours, or the name of ours."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._calls: dict[tuple[str, str, str, str], int] = {}
        self._took: dict[_Labels, Histogram] = {}
        self._in_progress: dict[_Labels, int] = {}

    async def __call__(self, ctx: Context, call: Call, proceed: Proceed) -> Any:
        """Count a call."""
        labels = (call.side.value, call.owner, call.name)
        self._in_progress[labels] = self._in_progress.get(labels, 0) + 1
        began = self._now()
        outcome = "ok"
        try:
            return await proceed(ctx, call)
        except BaseException as error:
            outcome = type(error).__name__ if isinstance(error, FrugalError) else "exception"
            raise
        finally:
            self._in_progress[labels] -= 1
            self._calls[*labels, outcome] = self._calls.get((*labels, outcome), 0) + 1
            took = self._took.get(labels)
            if took is None:
                took = self._took[labels] = Histogram.of_times()
            took.add(max(0, int((self._now() - began) / _US)))

    def page(self) -> str:
        """Return the page in Prometheus's text format, of `CONTENT_TYPE`."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"# HELP {_CALLS} Calls, publishes and messages that have ended, by how they ended."
        yield f"# TYPE {_CALLS} counter"
        for (side, owner, name, outcome), count in sorted(self._calls.items()):
            yield f'{_CALLS}{{{_text((side, owner, name))},outcome="{_escape(outcome)}"}} {count}'
        yield f"# HELP {_IN_PROGRESS} Calls, publishes and messages that are under way."
        yield f"# TYPE {_IN_PROGRESS} gauge"
        for labels, count in sorted(self._in_progress.items()):
            yield f"{_IN_PROGRESS}{{{_text(labels)}}} {count}"
        yield f"# HELP {_SECONDS} Time that they took."
        yield f"# TYPE {_SECONDS} histogram"
        for labels, took in sorted(self._took.items(), key=lambda each: each[0]):
            text = _text(labels)
            for bound, total in took.cumulative():
                yield f'{_SECONDS}_bucket{{{text},le="{bound * _US:.9g}"}} {total}'
            yield f'{_SECONDS}_bucket{{{text},le="+Inf"}} {took.count}'
            yield f"{_SECONDS}_sum{{{text}}} {took.sum * _US:.9g}"
            yield f"{_SECONDS}_count{{{text}}} {took.count}"


def _text(labels: _Labels) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in zip(("side", "owner", "name"), labels, strict=True))


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
