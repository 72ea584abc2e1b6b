"""Fixtures: a broker for each module, a client for each test, and a cluster for one test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock import aio
from tests.broker_process import BrokerProcess, running_broker
from tests.integration.clusters import ClusterProcesses, running_cluster


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Run one broker with its own nats-server for a module; after the tests it must stop without errors."""
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as shared:
        yield shared
        assert shared.is_running, shared.said
        assert shared.stop() == 0, shared.said
        assert "Traceback" not in shared.said, shared.said


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[aio.Client]:
    """Connect a client to the shared broker."""
    async with await broker.client() as connected:
        yield connected


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterProcesses]:
    """Run three brokers, all live."""
    with running_cluster(tmp_path) as brokers:
        await brokers.all_live()
        yield brokers
