"""Observability of a broker: its HTTP port with metrics and health, and the export of traces."""

from __future__ import annotations

import asyncio
import logging
import random
import socket

from penstock import __version__
from penstock.base.addresses import Address
from penstock.broker.config.config import BrokerConfig
from penstock.broker.driver import Driver, wall_clock
from penstock.broker.observability.http_pages import HttpPages, not_ready_reason
from penstock.broker.observability.http_server import HttpServer
from penstock.broker.observability.metrics_collector import BrokerMetricsCollector, DiskProbe, LoopLag
from penstock.broker.observability.otlp import Exporter
from penstock.broker.tracing import Tracing

_log = logging.getLogger("penstock.http")

_OTLP_STOP_S = 1.0  # for the spans left when the broker stops


def exporter_of(config: BrokerConfig) -> Exporter | None:
    """Return the exporter of spans; None if tracing is off. Raise ConfigError if it is not available."""
    if config.otlp_endpoint is None:
        return None
    return Exporter(config.otlp_endpoint, version=__version__, broker_id=config.broker_id)


class Observability:
    """Owns HTTP server and exporter. `start` it on a running loop, `stop` at the end. `http`: sockets and address;
    None: off.
    """

    def __init__(
        self,
        driver: Driver,
        config: BrokerConfig,
        http: tuple[list[socket.socket], Address] | None,
        exporter: Exporter | None,
    ) -> None:
        self._config = config
        self._driver = driver
        self._exporter = exporter
        self._lag = LoopLag(asyncio.get_running_loop())
        self._server: HttpServer | None = None
        self._address: Address | None = None
        if http is not None:
            listeners, self._address = http
            measures = BrokerMetricsCollector(
                driver,
                self._lag,
                version=__version__,
                broker_id=config.broker_id,
                started_us=wall_clock().wall_us,
                why=lambda: not_ready_reason(driver),
                exporter=exporter,
            )
            pages = HttpPages(
                driver, DiskProbe(driver, config.data_dir, config.nats_tls), measures, token=config.http_token
            )
            tls = driver.tls.http_context if driver.tls is not None and config.http_tls else None
            self._server = HttpServer(listeners, pages.answer, tls)

    async def start(self) -> None:
        """Start serving, and log the address."""
        if self._exporter is not None:
            self._exporter.start()
            self._driver.trace(Tracing(self._exporter.put, wall_clock, random.SystemRandom().getrandbits))
        if self._server is None:
            return
        self._lag.start()
        self._server.start()
        wanted, address = self._config.http, self._address
        assert wanted is not None
        assert address is not None
        taken = "" if wanted.port in (0, address.port) else f": port {wanted.port} is taken (--http sets another)"
        _log.info("metrics are at %s://%s/metrics%s", "https" if self._config.http_tls else "http", address, taken)
        if self._config.tls and not self._config.http_tls and not address.is_loopback:
            _log.warning("the HTTP port speaks no TLS, so its pages and its token can be read on the way: set http_tls")

    async def stop(self) -> None:
        """Stop serving; idempotent."""
        self._lag.stop()
        if self._server is not None:
            self._server.stop()
        if self._exporter is not None:
            if self._driver.tracing is not None:
                self._driver.tracing.stop()
            await asyncio.to_thread(self._exporter.stop, _OTLP_STOP_S)
