"""Starts that would split a broker from its cluster, or take it into another: real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, running_broker
from tests.integration.clusters import running_cluster


async def test_a_broker_of_several_does_not_start_on_a_nats_of_its_own(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        before = cluster.brokers[2]
        assert before.stop() == 0
        alone = BrokerProcess(before.data_dir, "--id", "2")
        try:
            alone.launch()
            assert alone.wait() == 2
            assert "belongs to a cluster of several, with brokers 1, 3" in alone.said
            assert "set nats (--nats)" in alone.said
        finally:
            alone.end()


async def test_a_broker_that_is_started_without_its_cluster_is_where_it_was(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        broker = cluster.brokers[2]
        before = broker.client_address
        assert broker.stop() == 0
        broker.listen, broker.arguments = "", ["--nats", cluster.nats.url, "--id", "2"]
        broker.start()
        assert broker.client_address == before
        state = await cluster.all_live()
        assert state.brokers[1].address == before


@pytest.mark.parametrize("way", ["--cluster", "--join"])
async def test_a_directory_that_was_used_alone_is_not_taken_into_a_cluster(tmp_path: Path, way: str) -> None:
    with running_broker(tmp_path / "broker-1") as broker:
        assert broker.stop() == 0
    with running_cluster(tmp_path / "cluster") as cluster:
        voter = cluster.brokers[1]
        voter.kill()
        shutil.rmtree(voter.data_dir, ignore_errors=True)
        shutil.copytree(tmp_path / "broker-1", voter.data_dir)
        if way == "--join":
            voter.arguments = ["--nats", cluster.nats.url, "--id", "1", "--join", cluster.brokers[2].client_address]
        voter.launch()
        assert voter.wait() == 2
        assert "is that of broker 1 alone, with a cluster of its own" in voter.said
        assert f"and {way} names" in voter.said
        assert "wrong --data-dir?" in voter.said


def test_a_broker_with_a_number_and_no_cluster_says_that_it_is_alone(tmp_path: Path) -> None:
    with running_broker(tmp_path, "--id", "2") as broker:
        broker.logged("broker 2 is a cluster of its own, with one broker")
