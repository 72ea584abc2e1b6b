"""A broker as it is seen from outside: its HTTP port, and what stands behind it."""

from __future__ import annotations

import asyncio
import logging
import socket

from penstock import __version__
from penstock.base.addresses import Address
from penstock.broker.config import BrokerConfig
from penstock.broker.driver import Driver, wall_clock
from penstock.broker.http_server import HttpServer
from penstock.broker.measures import BrokerMeasures, Looks, LoopLag
from penstock.broker.pages import Pages, why_not_ready

_log = logging.getLogger("penstock.http")


class Observed:
    """`start` once the event loop turns; `stop` at the end."""

    def __init__(self, driver: Driver, config: BrokerConfig, listeners: list[socket.socket]) -> None:
        self._config = config
        self._lag = LoopLag(asyncio.get_running_loop())
        measures = BrokerMeasures(
            driver,
            self._lag,
            version=__version__,
            broker_id=config.broker_id,
            started_us=wall_clock().wall_us,
            why=lambda: why_not_ready(driver),
        )
        pages = Pages(driver, Looks(driver, config.data_dir), measures, token=config.http_token)
        self._server = HttpServer(listeners, pages.answer)

    async def start(self, address: Address) -> None:
        """Be there for whoever asks, and say where."""
        self._lag.start()
        await self._server.start()
        wanted = self._config.http
        if wanted is not None and wanted.port not in (0, address.port):
            _log.info("metrics are at http://%s/metrics: port %d is taken (--http sets another)", address, wanted.port)
        else:
            _log.info("metrics are at http://%s/metrics", address)

    def stop(self) -> None:
        """Be there no more. Twice is fine."""
        self._lag.stop()
        self._server.stop()
