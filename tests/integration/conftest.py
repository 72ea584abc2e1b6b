"""Brokers that the tests of one module share, a client for each test, and clusters of a test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock import aio
from tests.broker_process import BrokerProcess, running_broker
from tests.integration.clusters import ClusterProcesses, running_cluster


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One broker with its own nats-server for all tests of a module; it must still be well when they have passed."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as shared:
        yield shared
        assert shared.is_running, shared.said
        assert shared.stop() == 0, shared.said
        assert "Traceback" not in shared.said, shared.said


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[aio.Client]:
    """A client of the shared broker."""
    async with await broker.client() as connected:
        yield connected


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    """Three brokers that know each other."""
    with running_cluster(tmp_path) as brokers:
        await brokers.all_live()
        yield brokers
