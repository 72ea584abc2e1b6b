"""Copies of data directories, started in the place of the newer one and beside it: real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.broker_process import BrokerProcess
from tests.extent import needs_time
from tests.integration.clusters import running_cluster
from tests.ports import free_ports


@needs_time
async def test_an_older_copy_is_told_so_and_ends_and_the_cluster_goes_on(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        broker = cluster.brokers[2]
        broker.kill()
        shutil.copytree(broker.data_dir, tmp_path / "copy")
        broker.start()
        await cluster.all_live()
        broker.kill()
        newer = broker.data_dir.rename(tmp_path / "newer")
        (tmp_path / "copy").rename(broker.data_dir)
        broker.launch()
        assert broker.wait() == 1
        assert f"{broker.data_dir} is an older copy of that of broker 2: broker 2 has run since" in broker.said
        await cluster.all_live()
        shutil.rmtree(broker.data_dir)
        newer.rename(broker.data_dir)
        broker.start()
        await cluster.all_live()


@needs_time
async def test_a_copy_beside_its_original_is_told_so_and_ends_and_the_original_goes_on(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        original = cluster.brokers[2]
        shutil.copytree(original.data_dir, tmp_path / "copy")
        (port,) = free_ports(1)
        copy = BrokerProcess(tmp_path / "copy", "--id", "2", nats=cluster.nats.url)
        copy.listen = f"127.0.0.1:{port}"
        try:
            copy.launch()
            assert copy.wait(40.0) == 1
            assert "broker 2 is there" in copy.said
            assert f"this one is broker 2 at 127.0.0.1:{port}, with the data directory {copy.data_dir}" in copy.said
        finally:
            copy.end()
        assert original.is_running
        await cluster.all_live()
