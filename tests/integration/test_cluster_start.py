"""Starts that would split a broker from its cluster, or take it into another: real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.broker_process import BrokerProcess, running_broker
from tests.extent import needs_time
from tests.integration.clusters import running_cluster
from tests.ports import free_ports


@needs_time
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


@needs_time
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


@pytest.mark.parametrize("way", ["--cluster", pytest.param("--join", marks=needs_time)])
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


@needs_time
async def test_a_directory_of_another_cluster_is_told_so_and_ends(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "other") as other:
        await other.all_live()
        foreign = other.brokers[3].data_dir
    with running_cluster(tmp_path / "cluster") as cluster:
        await cluster.all_live()
        broker = cluster.brokers[3]
        broker.kill()
        shutil.rmtree(broker.data_dir)
        shutil.copytree(foreign, broker.data_dir)
        broker.launch()
        assert broker.wait() == 1
        assert f"{broker.data_dir} is a data directory of another cluster" in broker.said
        assert "wrong --data-dir?" in broker.said
        await cluster.all_live()  # the others have not minded


@needs_time
async def test_a_second_broker_of_a_number_is_told_so_and_ends(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        await cluster.all_live()
        (port,) = free_ports(1)
        second = BrokerProcess(
            tmp_path / "second", "--id", "2", "--join", cluster.brokers[1].client_address, nats=cluster.nats.url
        )
        second.listen = f"127.0.0.1:{port}"
        before = cluster.said
        try:
            second.launch()
            assert second.wait(40.0) == 1
            assert "broker 2 is there already, from 127.0.0.1:" in second.said
            assert f"this one is broker 2 at 127.0.0.1:{port}, with the data directory {second.data_dir}" in second.said
        finally:
            print(second.said, cluster.said)
            second.end()
        told = cluster.said.count(" WARNING ") - before.count(" WARNING ")
        assert told <= len(cluster.brokers)  # each once, in a minute
        await cluster.all_live()


@needs_time
async def test_a_broker_at_the_address_of_another_is_told_so_and_ends(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster") as cluster:
        await cluster.all_live()
        taken = cluster.brokers[2].client_address
        place = ("--join", cluster.brokers[1].client_address, "--advertise", taken)
        fourth = BrokerProcess(tmp_path / "fourth", "--id", "4", *place, nats=cluster.nats.url)
        before = cluster.said
        try:
            fourth.launch()
            assert fourth.wait(40.0) == 1
            assert f"the address {taken} is that of broker 2, which is live" in fourth.said
        finally:
            print(fourth.said, cluster.said)
            fourth.end()
        assert cluster.said.count(" WARNING ") - before.count(" WARNING ") <= len(cluster.brokers)
        await cluster.all_live()
