"""The driver and the connection for JetStream's API."""

from __future__ import annotations

from penstock.broker.nats.api_link import ApiLinkEvents
from penstock.broker.nats.link import NatsLink
from penstock.broker.security.nats_credentials import NatsAccess, parse_nats_urls
from penstock.ingest.connect import ServerInfo
from penstock.ingest.nats import InfoChanged
from tests.unit.broker.test_driver_timer import driver_of
from tests.unit.jetstream.api_broker import ApiBroker


async def test_answers_go_by_the_payload_that_nats_server_takes_now() -> None:
    """One that is larger would cost the connection."""
    broker = ApiBroker().start()
    driver, _, disk = driver_of(broker)
    try:
        driver.gateway = broker.gateway
        access = NatsAccess(parse_nats_urls("nats://127.0.0.1:1"))
        driver.api_link = NatsLink(ApiLinkEvents(driver), access, clock_us=lambda: 0, random=lambda: 0.5)
        assert broker.gateway.payload_max == 1 << 20
        driver.api_link_event(InfoChanged(ServerInfo(max_payload=4_096)))
        assert broker.gateway.payload_max == 4_096
    finally:
        disk.close()
