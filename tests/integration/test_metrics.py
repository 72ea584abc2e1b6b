"""What operators see over HTTP, of real brokers, read by Prometheus's own parser."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock import StreamExists
from penstock.broker.observability.metrics import METRICS as OF_BROKER
from penstock.node.metrics import METRICS as OF_NODE
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses
from tests.integration.publishers import connected_to
from tests.metrics_page import Page, get, page_of, url_of
from tests.ports import ports_in_a_row
from tests.queries import queries, selectors

TABLE = {metric.name: metric for metric in (*OF_BROKER, *OF_NODE)}


async def pages_of(cluster: ClusterProcesses) -> dict[int, Page]:
    return {number: await page_of(url_of(broker)) for number, broker in cluster.brokers.items()}


def summed(pages: dict[int, Page], name: str, **labels: str) -> float:
    return sum(page.found(name, **labels) for page in pages.values())


@each_change
async def test_the_pages_of_a_cluster_say_what_has_happened_there(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client, connected_to(cluster.nats.url) as connection:
        await client.create_stream("orders", "orders.>", replicas=3, partitions=2, partition_by="token:2")
        await client.create_stream("alone", "alone", replicas=1)
        jetstream = connection.jetstream()
        for number in range(40):
            await jetstream.publish(f"orders.{number % 7}", b"x" * 100)
        await jetstream.publish("alone", b"")
        async with client.consumer("orders", "billing", batch_rows_max=5) as consumer:
            await anext(consumer)
            await consumer.commit()
        assert len([message async for message in client.messages("orders")]) == 40
        with pytest.raises(StreamExists):
            await client.create_stream("orders", "elsewhere")
    before = await pages_of(cluster)
    for page in before.values():
        assert {name: page.kinds[name] for name in page.kinds} == {name: TABLE[name].kind.value for name in page.kinds}
        assert page.value("penstock_ready") == 1
        assert page.value("penstock_raft_voters_reachable") == 3
        assert page.value("penstock_brokers", state="live") == 3
        assert page.value("penstock_nats_connected") == 1
        assert page.value("penstock_partitions", state="online") == page.value("penstock_streams") + 1 + 15
        assert page.value("penstock_disk_answers") == 1
        assert page.value("process_resident_memory_bytes") > 2**20
        assert page.value("penstock_loop_lag_seconds_count") > 0
    without_leaf = {name for name in TABLE if not name.startswith("penstock_leaf_")}
    assert set().union(*(page.kinds for page in before.values())) == without_leaf
    there = {name for page in before.values() for name, _ in page.samples}
    asked = {selector.name for query in queries() for selector in selectors(query.text)}
    # What is told with labels of things that did not happen here has no samples; that it exists is tested above.
    did_not_happen = {
        "penstock_partition_dropped_total",
        "penstock_certificate_expires_seconds",
        "penstock_credential_expires_seconds",
    }
    of_consumers = {name for name in TABLE if name.startswith("penstock_consumer_")}
    assert asked - there == {"up"} | did_not_happen | (asked & of_consumers)

    # Each message is counted by the leader that took it, and by nobody else.
    taken = [summed(before, "penstock_partition_messages_in_total", stream="orders", partition=one) for one in "01"]
    assert sum(taken) == 40
    assert summed(before, "penstock_partition_messages_in_total", stream="alone", partition="0") == 1
    assert summed(before, "penstock_acks_total") == 41
    assert summed(before, "penstock_ack_seconds_count") == 41
    assert 0 < summed(before, "penstock_ack_seconds_sum") < 41 * 5
    assert summed(before, "penstock_batch_rows_sum") == summed(before, "penstock_messages_in_total")
    assert summed(before, "penstock_replicated_bytes_total") > 40 * 100 * 2
    assert summed(before, "penstock_raft_is_leader") == 1
    assert summed(before, "penstock_log_sync_seconds_count") > 0
    for one in "01":
        labels = {"stream": "orders", "partition": one}
        assert summed(before, "penstock_partition_is_leader", **labels) == 1
        assert summed(before, "penstock_partition_isr_size", **labels) == 3
        assert summed(before, "penstock_partition_under_replicated", **labels) == 0
        # Only messages were read: no compaction has left gaps among the offsets.
        assert summed(before, "penstock_partition_offsets_out_total", **labels) >= summed(
            before, "penstock_partition_messages_in_total", **labels
        )
    assert summed(before, "penstock_request_errors_total", api="create_stream", code="stream_exists") == 1
    assert summed(before, "penstock_request_seconds_count", api="create_stream") >= 3

    # The group has done with its first batch, and its coordinator says what is left.
    lags = {labels: lag for page in before.values() for labels, lag in page.all("penstock_group_lag").items()}
    assert {dict(labels)["group"] for labels in lags} == {"billing"}
    assert {dict(labels)["stream"] for labels in lags} == {"orders"}
    assert 40 - 5 <= sum(lags.values()) < 40

    async with connected_to(cluster.nats.url) as connection:
        await connection.jetstream().publish("orders.1", b"more")
    after = await pages_of(cluster)
    for number, page in before.items():
        assert page.fallen(after[number]) == []
    assert summed(after, "penstock_messages_in_total") > summed(before, "penstock_messages_in_total")


@each_change
async def test_a_new_coordinator_tells_of_groups_that_nobody_asks_for(tmp_path: Path) -> None:
    """Whoever has stopped reading lags most: its lag must not be forgotten with a restart."""
    with running_broker(tmp_path / "data") as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders")
            for _ in range(3):
                await client.publish("orders", b"")
            async with client.consumer("orders", "billing") as consumer:
                await anext(consumer)
                await consumer.commit()
            await client.publish("orders", b"")
        broker.restart()
        url = broker.logged(r"metrics are at (http://\S+)/metrics").group(1)

        async def lag() -> dict[object, float]:
            return dict((await page_of(url)).all("penstock_group_lag"))

        labels = (("group", "billing"), ("partition", "0"), ("stream", "orders"))
        assert await eventually(lag, "the lag of a group") == {labels: 1.0}


async def test_readiness_follows_nats_and_life_does_not(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server, running_broker(tmp_path / "data", nats=server.url) as broker:
        url = url_of(broker)
        ready = await get(f"{url}/readyz")
        assert (ready.status, ready.text) == (200, "ready\n")
        server.kill()

        async def says_why() -> str:
            got = await get(f"{url}/readyz")
            return got.text if got.status == 503 else ""

        assert "not connected to NATS" in await eventually(says_why, "it is not ready without NATS")
        assert (await get(f"{url}/healthz")).status == 200
        page = await page_of(url)
        assert (page.value("penstock_ready"), page.value("penstock_nats_connected")) == (0, 0)
        assert page.value("penstock_nats_disconnects_total") == 1
        assert page.value("penstock_subscription_gap_open_seconds") > 0


@each_change
@pytest.mark.parametrize("option", ["--http-token", "--auth"])
async def test_strangers_hear_only_of_what_kind_it_is_that_a_broker_waits_for(tmp_path: Path, option: str) -> None:
    arguments = (option, *(("s3cret",) if option == "--http-token" else ()))
    with (
        running_nats(tmp_path / "nats") as server,
        running_broker(tmp_path / "data", *arguments, nats=server.url) as one,
    ):
        url = url_of(one)
        assert (await get(f"{url}/readyz")).text == "ready\n"
        server.kill()

        async def says_why() -> str:
            got = await get(f"{url}/readyz")
            return got.text if got.status == 503 else ""

        assert await eventually(says_why, "it is not ready without NATS") == "not connected to NATS\n"
        told = (await get(f"{url}/readyz", token="s3cret")).text
        assert told.startswith("not connected to NATS: ") is (option == "--http-token")


@each_change
async def test_a_broker_that_waits_for_others_says_for_what(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as server:
        cluster = ClusterProcesses(tmp_path, server, 3)
        try:
            cluster.brokers[1].launch()
            url = url_of(cluster.brokers[1])
            got = await get(f"{url}/readyz")
            assert (got.status, got.text) == (503, "waiting for a majority: 1 of 3 voters reachable\n")
            assert (await get(f"{url}/healthz")).text == "ok\n"
        finally:
            cluster.end()


@each_change
async def test_a_token_is_needed_for_metrics_where_there_is_one(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    with running_broker(tmp_path / "data", "--http", "127.0.0.1:0", "--http-token-file", str(secret)) as broker:
        url = url_of(broker)
        for token in (None, "wrong", "s3cre", "s3crets"):
            got = await get(f"{url}/metrics", token=token)
            assert (got.status, got.headers["WWW-Authenticate"]) == (401, "Bearer"), token
            assert "penstock_" not in got.text
        assert "s3cret" not in (await page_of(url, token="s3cret")).text
        assert (await get(f"{url}/readyz")).status == 200
        assert "s3cret" not in broker.said


async def test_only_what_is_there_can_be_asked_for_and_only_so(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        url = url_of(broker)
        assert (await get(f"{url}/")).status == 404
        posted = await get(f"{url}/metrics", method="DELETE")
        assert (posted.status, posted.headers["Allow"]) == (405, "GET, HEAD")
        head, whole = await get(f"{url}/healthz", method="HEAD"), await get(f"{url}/healthz?verbose")
        assert (head.status, head.text, head.headers["Content-Length"]) == (200, "", str(len(whole.text)))


def test_a_port_that_somebody_chose_is_had_or_the_broker_does_not_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = BrokerProcess(tmp_path / "data", "--http", f"127.0.0.1:{port}")
        try:
            broker.launch()
            assert broker.wait() == 1
            assert f"cannot listen on 127.0.0.1:{port}" in broker.said
            assert "--http" in broker.said
        finally:
            broker.end()


@needs_time
def test_two_brokers_on_one_machine_need_no_setting(tmp_path: Path) -> None:
    with running_broker(tmp_path / "one") as one, running_broker(tmp_path / "two") as two:
        assert url_of(one) != url_of(two)


def test_it_can_be_turned_off(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data", "--http", "off") as broker:
        assert broker.stop() == 0
        assert "metrics are at" not in broker.said


@needs_time
async def test_brokers_of_one_machine_take_ports_that_follow(tmp_path: Path) -> None:
    first = ports_in_a_row(2)
    broker = BrokerProcess(tmp_path / "data", "--brokers", "2", "--http", f"127.0.0.1:{first}")
    try:
        broker.start()
        for number in (1, 2):
            page = await page_of(f"http://127.0.0.1:{first + number - 1}")
            (labels,) = page.all("penstock_build_info")
            assert dict(labels)["broker"] == str(number)
    finally:
        broker.stop()
        broker.end()
