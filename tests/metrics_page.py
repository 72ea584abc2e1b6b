"""A metrics page as Prometheus's own parser reads it, and the checks that every page must pass."""

from __future__ import annotations

import asyncio
import ssl
import urllib.error
import urllib.request
from collections import Counter
from email.message import Message
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.broker_process import BrokerProcess

Labels = tuple[tuple[str, str], ...]


class Got(NamedTuple):
    """An HTTP response."""

    status: int
    headers: Message
    text: str


def url_of(broker: BrokerProcess) -> str:
    """Return the URL of a broker's HTTP port, from its log."""
    return broker.logged(r"metrics are at (https?://\S+)/metrics").group(1)


async def get(url: str, *, method: str = "GET", token: str | None = None, trusted: ssl.SSLContext | None = None) -> Got:
    """Request a page; with `trusted`, over TLS."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, method=method, headers=headers)

    def ask() -> Got:
        try:
            with urllib.request.urlopen(request, timeout=30, context=trusted) as answer:
                return Got(answer.status, answer.headers, answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Got(error.code, error.headers, error.read().decode())

    return await asyncio.to_thread(ask)


class Page:
    """All samples of one page; parsing checks the format."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.kinds: dict[str, str] = {}  # types of metrics, by their names on the page
        self.samples: dict[tuple[str, Labels], float] = {}
        self._counters: set[str] = set()
        lines = text.splitlines()
        names = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert names == [line.split()[2] for line in lines if line.startswith("# HELP")]
        assert [name for name, count in Counter(names).items() if count > 1] == []
        for family in text_string_to_metric_families(text):
            assert family.type in ("counter", "gauge", "histogram"), family.name  # a sample without TYPE is "unknown"
            assert family.documentation, family.name
            self.kinds[f"{family.name}_total" if family.type == "counter" else family.name] = family.type
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in self.samples, f"twice: {key}"
                self.samples[key] = sample.value
                if family.type == "counter" or sample.name.endswith(("_bucket", "_count")):
                    self._counters.add(sample.name)
            if family.type == "histogram":
                self._check_histogram(family.name)
        assert set(self.kinds) == set(names)

    def _check_histogram(self, name: str) -> None:
        """Check that bounds ascend, and that buckets are cumulative up to the total count."""
        buckets: dict[Labels, list[tuple[float, float]]] = {}
        for (sample, labels), value in self.samples.items():
            if sample == f"{name}_bucket":
                rest = tuple(one for one in labels if one[0] != "le")
                buckets.setdefault(rest, []).append((float(dict(labels)["le"]), value))
        for labels, found in buckets.items():
            assert found == sorted(found), (name, labels)
            counts = [count for _, count in found]
            assert counts == sorted(counts), (name, labels)
            assert found[-1] == (float("inf"), self.samples[f"{name}_count", labels])

    def value(self, name: str, **labels: str) -> float:
        """Return one sample. Raise KeyError if it is missing."""
        return self.samples[name, tuple(sorted(labels.items()))]

    def found(self, name: str, **labels: str) -> float:
        """Return one sample; 0 if it is missing."""
        return self.samples.get((name, tuple(sorted(labels.items()))), 0)

    def all(self, name: str) -> dict[Labels, float]:
        """Return all samples of that name, by their labels."""
        return {labels: value for (sample, labels), value in self.samples.items() if sample == name}

    def fallen(self, later: Page) -> list[tuple[str, Labels]]:
        """Return the counters that decreased or are missing on a later page."""
        return [
            (name, labels)
            for (name, labels), value in self.samples.items()
            if name in self._counters and later.samples.get((name, labels), -1) < value
        ]


async def page_of(url: str, *, token: str | None = None, trusted: ssl.SSLContext | None = None) -> Page:
    """Request and parse a broker's metrics."""
    got = await get(f"{url}/metrics", token=token, trusted=trusted)
    assert (got.status, got.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return Page(got.text)
