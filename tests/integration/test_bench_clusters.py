"""`penstock bench` of replicated streams: three of each, in tiny runs, of which no time is asserted."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from penstock_bench.experiments import catch_up, read_replicas
from penstock_bench.load.generator import Load
from penstock_bench.measure.latency import ACK, CONSUMER, LATE, LatencyLoad, LatencyMeasurement, latency_measure
from penstock_bench.measure.rounds import publish_measure
from penstock_bench.runs import replicated
from penstock_bench.systems import clusters
from penstock_bench.systems.system import JetStreamLog
from tests.extent import needs_time

LOAD = Load(size=100, messages=600, window=40, seconds_max=20.0)
COUNTED = ("penstock-r3", "jetstream-r3")
ROLES = {"leader", "follower-1", "follower-2"}


@needs_time
@pytest.mark.parametrize("name", clusters.VARIANTS)
def test_a_cluster_acks_what_all_its_processes_work_for(tmp_path: Path, name: str) -> None:
    with clusters.VARIANTS[name].start(tmp_path) as system:
        measured = publish_measure(name, system, LOAD)(0)
        assert measured.void is None
        assert measured.messages == LOAD.messages
        others = {"generator", "nats-server"} if name.startswith("penstock") else {"generator"}
        assert set(measured.cpu_seconds) == ROLES | others
        assert all(seconds > 0 for seconds in measured.cpu_seconds.values())

        latency = latency_measure(name, system, LatencyLoad(size=64, rate_per_s=100.0, seconds=0.2))(0)
        assert isinstance(latency, LatencyMeasurement)
        assert latency.void is None
        assert set(latency.histograms) == {ACK, CONSUMER, LATE}


@needs_time
def test_each_broker_has_a_copy_of_what_is_acked(tmp_path: Path) -> None:
    with clusters.penstock_cluster(tmp_path) as cluster, cluster.log() as log:
        sent = log.publish(LOAD).sent
        folders = [cluster.brokers.folder(number) for number in cluster.brokers.addresses]
        sizes = {sum(file.stat().st_size for file in folder.glob("streams/*-bench-1/0/*.arrows")) for folder in folders}
        assert len(sizes) == 1
        assert sizes.pop() > sent.value_bytes


@needs_time
@pytest.mark.parametrize(("name", "is_led"), [("jetstream-r3", True), ("jetstream-r3-away", False)])
def test_the_publisher_is_connected_to_who_leads_or_is_not(tmp_path: Path, name: str, is_led: bool) -> None:
    with clusters.VARIANTS[name].start(tmp_path) as system, system.log() as log:
        assert isinstance(system, clusters.JetStreamCluster)
        assert isinstance(log, JetStreamLog)
        leaders = [one.process_id for one in system.servers.values() if one.address == log.nats]
        assert (leaders == [log.processes["leader"]]) is is_led


@needs_time
def test_messages_are_written_once_and_sent_once_to_each_follower(tmp_path: Path) -> None:
    load = Load(size=1_024, messages=2_000, window=500, seconds_max=20.0)
    figures = {one.name: one.got for one in replicated.counted(load).run(tmp_path, lambda name: None).figures}
    assert set(figures) == {f"{name}-{kind}" for name in COUNTED for kind in ("disk", "written", "network")}
    assert 1.0 < figures["penstock-r3-disk"] < 2.0
    assert 1.0 < figures["penstock-r3-network"] < 2.0


@needs_time
def test_a_broker_with_an_empty_disk_catches_up_while_messages_are_acked(tmp_path: Path) -> None:
    plan = msgspec.structs.replace(catch_up.CatchUpPlan(30_000_000), quiet_s=3.0)
    figures = {one.name: one for one in catch_up.run(plan, tmp_path, lambda what: None)}
    assert figures["catch-up"].got > 0
    assert figures["catch-up"].at_least
    assert figures["catch-up-cpu"].got > 0


@needs_time
def test_reads_are_measured_over_one_replica_and_over_three(tmp_path: Path) -> None:
    plan = read_replicas.experiment(size_bytes=1 << 20, consumers=6, rounds=1)
    steps: list[str] = []
    found = {one.name: one for one in plan.run(tmp_path, steps.append).figures}
    assert len(steps) == plan.steps
    assert set(found) == {"read-alone", "read-crowded", "read-spread", "read-share", "flat-alone", "flat-crowded"}
    assert all(one.got > 0 for one in found.values())
