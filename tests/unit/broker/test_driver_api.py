"""The driver and the connection for JetStream's API."""

from __future__ import annotations

import pytest

from penstock.broker.driver import Driver
from penstock.broker.nats.api_link import ApiLinkEvents
from penstock.broker.nats.link import NatsLink
from penstock.broker.process.disk_threads import DiskThreads
from penstock.broker.security.nats_credentials import NatsAccess, parse_nats_urls
from penstock.ingest.connect import ServerInfo
from penstock.ingest.nats import InfoChanged, InterestLost
from tests.groups import group_of
from tests.unit.broker.test_driver_timer import driver_of
from tests.unit.jetstream.api_broker import ApiBroker
from tests.unit.jetstream.test_isolation import PartWithBug


def with_api(broker: ApiBroker) -> tuple[Driver, DiskThreads]:
    """A driver with the broker's gateway, and a link for the API that never comes up."""
    driver, _, disk = driver_of(broker)
    driver.gateway = broker.gateway
    access = NatsAccess(parse_nats_urls("nats://127.0.0.1:1"))
    driver.api_link = NatsLink(ApiLinkEvents(driver), access, clock_us=lambda: 0, random=lambda: 0.5)
    return driver, disk


async def test_answers_go_by_the_payload_that_nats_server_takes_now() -> None:
    """One that is larger would cost the connection."""
    broker = ApiBroker().start()
    driver, disk = with_api(broker)
    try:
        assert broker.gateway.payload_max == 1 << 20
        driver.api_link_event(InfoChanged(ServerInfo(max_payload=4_096)))
        assert broker.gateway.payload_max == 4_096
    finally:
        disk.close()


async def test_a_bug_in_the_api_is_reported_and_costs_no_more(caplog: pytest.LogCaptureFixture) -> None:
    broker = ApiBroker().start()
    driver, disk = with_api(broker)
    try:
        broker.gateway.parts.append(PartWithBug())
        driver.calls_received(group_of([(b"$JS.API.elsewhere", None, None, b"")]))
        driver.leaf_event(InterestLost((b"s",)))
        assert caplog.text.count("internal error (bug) in JetStream's API") == 2
    finally:
        disk.close()


async def test_requests_that_come_while_the_broker_stops_are_refused() -> None:
    """Their callers would wait for an answer that does not come."""
    broker = ApiBroker().start()
    driver, disk = with_api(broker)
    try:
        broker.gateway.shut_down()
        driver._stopping = True
        driver.calls_received(group_of([(b"$JS.API.STREAM.NAMES", b"reply", None, b"")]))
        assert broker.gateway.errors["", 10008] == 1
    finally:
        disk.close()
