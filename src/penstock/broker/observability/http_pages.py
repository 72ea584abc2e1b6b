"""Pages of a broker's HTTP port.

Rules: no page has a secret, or message content. A metrics page is made in several loop turns, so that messages are not
delayed, and once for all concurrent requests. Liveness and readiness need no token; but if a token or a login is
required, details of what a broker waits for (addresses, directories) are shown only with the token.

| path       | 200                                                      | 503                                         |
|------------|----------------------------------------------------------|---------------------------------------------|
| `/metrics` | always                                                   |                                             |
| `/healthz` | the event loop runs, and the disk answers                | the disk does not; the body says so         |
| `/readyz`  | registered in the cluster, and connected to NATS         | not yet; the body says what it waits for    |
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable

from penstock.base import limits
from penstock.base.meters import Families
from penstock.broker.driver import Driver
from penstock.broker.observability.exposition import CONTENT_TYPE, text_of
from penstock.broker.observability.http_connection import HttpRequest, HttpResponse
from penstock.broker.observability.metrics_collector import BrokerMetricsCollector, DiskProbe

_METRIC_TURN_US = 1_000  # time spent on a page before the event loop gets a turn; one metric may take longer
_METHODS = ("GET", "HEAD")
_BEARER = "bearer "


def not_ready_reason(driver: Driver) -> str:
    """Return why the broker is not ready; empty if it is."""
    if driver.is_stopping:
        return "the broker is stopping"
    if waits_for := driver.waits_for:
        return waits_for
    if not driver.link.is_up:
        return f"not connected to NATS: {driver.link.last_failure or 'no connection yet'}"
    return ""


def _kind_of_waiting(driver: Driver) -> str:
    """Return why it is not ready, without details."""
    if driver.is_stopping:
        return "the broker is stopping"
    return "waiting for its registration in the cluster" if driver.waits_for else "not connected to NATS"


class HttpPages:
    """Answers HTTP requests. `token`: required for all pages except liveness and readiness; None: none required."""

    def __init__(
        self,
        driver: Driver,
        looks: DiskProbe,
        measures: BrokerMetricsCollector,
        *,
        token: str | None,
    ) -> None:
        self._driver = driver
        self._looks = looks
        self._measures = measures
        self._token = token
        self._making: asyncio.Task[bytes] | None = None
        self._pages: dict[str, Callable[[HttpRequest], Awaitable[HttpResponse]]] = {
            "/healthz": self._health,
            "/readyz": self._readiness,
            "/metrics": self._metrics,
        }
        self._open_to_all = ("/healthz", "/readyz")

    async def answer(self, asked: HttpRequest) -> HttpResponse:
        path = asked.target.partition("?")[0]
        page = self._pages.get(path)
        if page is None:
            return HttpResponse(404, f"there are {', '.join(sorted(self._pages))}\n".encode())
        if asked.method not in _METHODS:
            return HttpResponse(405, b"only GET and HEAD\n", headers=(("allow", ", ".join(_METHODS)),))
        if path not in self._open_to_all and not self._may_see(asked.authorization):
            return HttpResponse(
                401, b"a bearer token is needed (http_token)\n", headers=(("www-authenticate", "Bearer"),)
            )
        return await page(asked)

    def _may_see(self, authorization: str) -> bool:
        """True if this request may see all details."""
        if self._token is None:
            return True
        is_bearer = authorization[: len(_BEARER)].lower() == _BEARER
        given = authorization[len(_BEARER) :].strip()
        return is_bearer and hmac.compare_digest(given.encode("latin-1"), self._token.encode())

    async def _health(self, asked: HttpRequest) -> HttpResponse:
        if await self._looks.sample() is None:
            return HttpResponse(503, f"the disk has not answered within {limits.DISK_PROBE_TIMEOUT_MS} ms\n".encode())
        if stalled := self._driver.stalled_syncs:
            return HttpResponse(503, f"syncs of {stalled} logs have not come back\n".encode())
        return HttpResponse(200, b"ok\n")

    async def _readiness(self, asked: HttpRequest) -> HttpResponse:
        if why := not_ready_reason(self._driver):
            is_private = self._token is not None or self._driver.server.guard.is_guarded
            is_known = self._token is not None and self._may_see(asked.authorization)
            told = _kind_of_waiting(self._driver) if is_private and not is_known else why
            return HttpResponse(503, f"{told}\n".encode())
        return HttpResponse(200, b"ready\n")

    async def _metrics(self, asked: HttpRequest) -> HttpResponse:
        if self._making is None or self._making.done():
            self._making = asyncio.create_task(self._make(), name="metrics")
        return HttpResponse(200, await asyncio.shield(self._making), CONTENT_TYPE)

    async def _make(self) -> bytes:
        look = await self._looks.sample()
        lines: list[str] = []
        for families in (self._measures.families(look), self._driver.families()):
            await self._take(families, lines)
        return "".join(lines).encode()

    async def _take(self, families: Families, lines: list[str]) -> None:
        """Render the families, yielding to the event loop regularly."""
        loop = asyncio.get_running_loop()
        pause_s = _METRIC_TURN_US / 1e6
        due_s = loop.time() + pause_s
        for family in families:
            if family is not None:
                lines.append(text_of(family))
            if loop.time() >= due_s:
                await asyncio.sleep(0)
                due_s = loop.time() + pause_s
