"""What `penstock status`, `wait` and `doctor` say of a real cluster in which something is missing."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Credentials, aio
from penstock.client.users import password_credential, rule
from penstock.doctor.cluster_state import cluster_state
from penstock.doctor.verdict import Health, Verdict, judge
from tests.broker_process import eventually
from tests.cli_process import command, ended, launched
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster
from tests.integration.guarded import PASSWORD, guarded_broker, in_cluster
from tests.integration.small_disk import small_disk

DEGRADED, DOWN = 3, 1


def addresses(cluster: ClusterProcesses) -> str:
    """All brokers, so that it does not matter which of them answer."""
    return ",".join(broker.client_address for broker in cluster.brokers.values())


async def verdict(server: str) -> Verdict:
    return judge(await cluster_state(server, timeout=10.0))


async def verdict_that(server: str, *texts: str) -> Verdict:
    """Wait for a verdict whose reasons have all these texts."""

    async def look() -> Verdict | None:
        found = await verdict(server)
        said = "; ".join(one.text for one in found.reasons)
        return found if all(text in said for text in texts) else None

    return await eventually(look, f"the verdict says {texts}")


async def status_json(server: str, code: int) -> dict[str, Any]:
    said, _ = await command(server, "status", "--json", code=code)
    found: dict[str, Any] = json.loads(said)
    return found


@each_change
async def test_what_is_missing_of_a_cluster_is_told_as_what_it_is(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3) as cluster:
        server = addresses(cluster)
        await command(server, "wait", "--ready", "--timeout", "60s")
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            await client.publish("orders.a", b"1")
            await client.groups.commit("mail", "orders", {0: 0})
        await command(server, "wait", "--in-sync", "--timeout", "60s")
        for broker in cluster.brokers.values():
            said, _ = await command(broker.client_address, "status")
            assert said.splitlines()[0] == "healthy"
        told = await status_json(server, 0)
        assert told["verdict"] == {"health": "healthy", "reasons": []}
        assert [one["broker_id"] for one in told["brokers"]] == [1, 2, 3]
        assert all(one["status"]["disk_size_bytes"] > one["status"]["disk_free_bytes"] for one in told["brokers"])
        assert {"group": "mail", "stream": "orders", "lag": 1} in told["groups"]

        # A broker that is killed is not simply live until its session ends.
        leader = await cluster.metadata_leader()
        third = next(number for number in (3, 2) if number != leader)
        cluster.brokers[third].kill()
        silent = await verdict_that(server, f"broker {third} does not answer (connection refused), silent for")
        assert silent.health is Health.DEGRADED
        await verdict_that(server, f"broker {third} is away (connection refused)", f"the replica on broker {third}")
        said, _ = await command(server, "status", code=DEGRADED)
        assert said.splitlines()[0].startswith(f"degraded: broker {third} is away (connection refused)")
        _, waited = await command(server, "wait", "--in-sync", "--timeout", "1s", code=1)
        assert f"Error: not in sync after 1s: broker {third} is away (connection refused)" in waited

        # Without a majority.
        second = next(number for number in (2, 1) if number not in (leader, third))
        cluster.brokers[second].kill()
        await verdict_that(server, "no metadata leader: 1 of 3 voters reachable")
        said, _ = await command(server, "status", code=DOWN)
        assert said.startswith("down: no metadata leader: 1 of 3 voters reachable (broker ")
        said, _ = await command(server, "doctor", "--json", code=1)
        found = {one["check"]: one for one in json.loads(said)["findings"]}
        assert found["metadata"]["found"] == "no leader; 1 of 3 voters reachable"
        assert found["partitions"]["found"].startswith("without a metadata leader none of ")
        for number in (second, third):
            cluster.brokers[number].launch()
        await command(server, "wait", "--in-sync", "orders", "--timeout", "60s")

        # Without NATS.
        cluster.nats.kill()
        away = await verdict_that(server, "no broker is connected to NATS: ")
        assert away.health is Health.DOWN
        assert [one.kind for one in away.reasons] == ["nats_away"]
        cluster.nats.start()
        await command(server, "wait", "--ready", "--timeout", "60s")
        cluster.end()
        said, errors = await command(server, "status", code=DOWN)
        assert said.startswith("down: no broker answers at 127.0.0.1:")
        assert errors.startswith("Error: no broker answers at 127.0.0.1:")


@needs_time
async def test_a_broker_with_another_secret_is_told_so(tmp_path: Path) -> None:
    with running_cluster(tmp_path, 3, *in_cluster(tmp_path), started=False) as cluster:
        cluster.log_in(Credentials.password("admin", PASSWORD))
        other = tmp_path / "other-secret"
        other.write_text("quite another secret than that of the cluster\n")
        stranger = cluster.brokers[3]
        stranger.arguments[stranger.arguments.index("--cluster-secret-file") + 1] = str(other)
        cluster.start()
        login = tmp_path / "login"
        login.write_text(f"admin:{PASSWORD}\n")

        async def look() -> str:
            with launched(cluster.brokers[1].client_address, "status", "--credentials", str(login)) as running:
                said, _ = running.communicate(timeout=60)
                return said if "secret" in said else ""

        said = await eventually(look, "the status tells of the secret")
        assert said.startswith("degraded: broker 3 at ")
        assert "is the cluster_secret_file the same?" in said


@needs_time
async def test_who_may_monitor_sees_everything_and_does_nothing(tmp_path: Path) -> None:
    with guarded_broker(tmp_path / "data") as broker:
        async with await broker.client() as admin:
            await admin.create_stream("orders", "orders.>")
            await admin.append("orders", [{"subject": "orders.eu", "value": b"1"}])
            await admin.groups.commit("mail", "orders", {0: 0})
            await admin.users.create("oncall", password_credential(PASSWORD), rules=[rule("monitor")])
        server, login = broker.client_address, {"PENSTOCK_USER": "oncall", "PENSTOCK_PASSWORD": PASSWORD}

        async def run(*arguments: str, code: int = 0) -> str:
            with launched(server, *arguments, more=login) as running:
                return "".join(await ended(running, code))

        assert (await run("status")).startswith("healthy\n")
        assert "mail on orders 1" in await run("status")
        await run("wait", "--in-sync")
        assert "orders" in await run("stream", "list")
        assert "orders.>" in await run("stream", "show", "orders")
        assert "mail" in await run("group", "list")
        assert "orders" in await run("group", "show", "mail")
        await run("doctor")
        for arguments in (
            ("read", "orders"),
            ("stream", "purge", "orders", "--all", "--yes"),
            ("stream", "delete", "orders", "--yes"),
            ("user", "add", "eve", "--token"),
        ):
            assert "may not" in await run(*arguments, code=1) or "not an administrator" in await run(*arguments, code=1)
        for wrong in ({"PENSTOCK_USER": "oncall", "PENSTOCK_PASSWORD": "rotated"}, {}):  # it may well be healthy
            with launched(server, "status", "--json", more=wrong) as running:
                said, error = await ended(running, 2)
            assert json.loads(said)["verdict"]["health"] == "unknown"
            assert json.loads(said)["verdict"]["reasons"][0]["text"] in error
        async with aio.connect(server, credentials=penstock.Credentials.password("oncall", PASSWORD)) as client:
            assert [one.name for one in await client.streams()] == ["__audit", "__offsets", "orders"]


@needs_time
async def test_a_full_disk_of_another_broker_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, running_cluster(tmp_path, 3, started=False) as cluster:
        if not disk.is_mounted:
            pytest.skip("needs the right to mount a tmpfs")
        cluster.brokers[3].data_dir = disk.folder / "data"
        cluster.start()
        server = addresses(cluster)
        await command(server, "wait", "--ready", "--timeout", "60s")
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            disk.fill_up(disk.folder / "rest")
            for _ in range(20):
                with suppress(penstock.StorageFailed):  # while broker 3 leads
                    await client.append("orders", [{"subject": "orders.a", "value": bytes(100_000)}])
        for broker in cluster.brokers.values():
            await verdict_that(broker.client_address, "the disk of broker 3 is full (", "the replica on broker 3")
        (disk.folder / "rest").unlink()
        disk.make_room(cluster.brokers[3])
        await command(server, "wait", "--in-sync", "--timeout", "60s")
