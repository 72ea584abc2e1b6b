"""What a page of metrics says where there is much, and where the disk hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from penstock import aio
from penstock.base import limits
from penstock.broker.driver import Driver
from penstock.broker.observability.http_connection import HttpRequest, HttpResponse
from penstock.broker.observability.http_pages import HttpPages, not_ready_reason
from penstock.broker.observability.metrics_collector import BrokerMetricsCollector, DiskProbe, LoopLag
from penstock.node.step import Lane
from penstock.vfs.real import RealVfs
from tests.broker_process import running_nats
from tests.integration.in_process import broker_in_process
from tests.metrics_page import Page


def pages_of(driver: Driver, folder: Path) -> HttpPages:
    lag = LoopLag(driver._loop)
    measures = BrokerMetricsCollector(
        driver, lag, version="test", broker_id=1, started_us=0, why=lambda: not_ready_reason(driver)
    )
    return HttpPages(driver, DiskProbe(driver, folder), measures, token=None)


async def asked(pages: HttpPages, target: str) -> HttpResponse:
    return await pages.answer(HttpRequest("GET", target, ""))


async def page_of(pages: HttpPages) -> Page:
    return Page((await asked(pages, "/metrics")).body.decode())


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Driver, HttpPages, aio.Client]]:
    with running_nats(folder / "nats") as server:
        data = folder / "data"
        data.mkdir()
        async with broker_in_process(RealVfs(data), server.url) as broker:
            async with await aio.connect(broker.address) as client:
                yield broker.driver, pages_of(broker.driver, data), client


async def test_of_many_partitions_and_offsets_only_sums_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path) as (_, pages, client):
        for name in ("one", "two"):
            await client.create_stream(name, f"{name}.>", partitions=2, partition_by="token:2")
            for number in range(20):
                await client.publish(f"{name}.{number}", b"x")
        for group in ("a", "b"):
            async with client.consumer("one", group) as consumer:
                async for _ in consumer:
                    pass
        for number in range(5):
            await client.publish(f"one.{number}", b"x")

        each = await page_of(pages)
        name = "penstock_partition_messages_in_total"
        by_stream = {
            stream: sum(each.found(name, stream=stream, partition=part) for part in "01") for stream in ("one", "two")
        }
        assert by_stream == {"one": 25, "two": 20}
        assert sum(each.all("penstock_group_lag").values()) == 10

        monkeypatch.setattr(limits, "METRIC_PARTITIONS_MAX", 4)
        monkeypatch.setattr(limits, "METRIC_GROUP_OFFSETS_MAX", 3)
        streams = await page_of(pages)
        assert {stream: streams.value(name, stream=stream, partition="*") for stream in by_stream} == by_stream
        assert {dict(labels)["partition"] for labels in streams.all("penstock_partition_size_bytes")} == {"*"}
        assert streams.value("penstock_group_lag", group="a", stream="one", partition="*") == 5
        assert len(streams.all("penstock_group_lag")) == 2

        monkeypatch.setattr(limits, "METRIC_PARTITIONS_MAX", 2)
        monkeypatch.setattr(limits, "METRIC_GROUP_OFFSETS_MAX", 1)
        all_together = await page_of(pages)
        assert all_together.value(name, stream="*", partition="*") == each.value("penstock_messages_in_total")
        assert all_together.value("penstock_group_lag", group="*", stream="*", partition="*") == 10
        assert len(all_together.samples) < len(streams.samples) < len(each.samples)


async def test_what_is_deleted_is_no_lag_of_a_group(tmp_path: Path) -> None:
    """As `penstock group show` has it: a group that is idle has no lag in what nobody can read any more."""
    async with serving(tmp_path) as (_, pages, client):
        await client.create_stream("orders", "orders")
        for _ in range(20):
            await client.publish("orders", b"x")
        await client.groups.commit("idle", "orders", {0: 5})
        for log_start, lag in ((0, 15), (3, 15), (12, 8), (20, 0)):
            await client.truncate_stream("orders", log_start)
            page = await page_of(pages)
            assert page.value("penstock_group_lag", group="idle", stream="orders", partition="0") == lag
            assert [one.lag for one in await client.groups.offsets("idle", "orders")] == [lag]


async def test_a_deleted_message_is_no_lag_of_a_group_and_no_message_of_the_stream(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, pages, client):
        await client.create_stream("orders", "orders")
        for _ in range(20):
            await client.publish("orders", b"x")
        await client.groups.commit("idle", "orders", {0: 5})
        await client.delete("orders", [2, 7, 8, 19])
        page = await page_of(pages)
        assert page.value("penstock_group_lag", group="idle", stream="orders", partition="0") == 12
        assert page.value("penstock_partition_messages", stream="orders", partition="0") == 16
        assert [one.lag for one in await client.groups.offsets("idle", "orders")] == [12]
        assert [one.lag for one in await client.groups.all(lag=True)] == [12]
        assert [one.lag for one in await client.groups.reset("idle", "orders", 7)] == [10]
        assert (await client.stream("orders")).messages == 16


async def test_what_is_refused_is_told_by_reason_and_a_deleted_stream_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, pages, client):
        await client.create_stream("small", "small", max_message_bytes=1024)
        with pytest.raises(Exception, match="1024"):
            await client.publish("small", b"x" * 2000)
        page = await page_of(pages)
        (labels,) = page.all("penstock_partition_dropped_total")
        assert {"stream": "small", "partition": "0"}.items() <= dict(labels).items()
        assert page.value("penstock_dropped_total") == 1
        await client.delete_stream("small")
        assert 'stream="small"' not in (await page_of(pages)).text


async def test_a_hung_disk_shows_in_life_and_the_page_is_made_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DISK_PROBE_TIMEOUT_MS", 50)
    async with serving(tmp_path) as (driver, pages, _):
        assert (await asked(pages, "/healthz")).status == 200
        hung = threading.Event()
        for _ in range(2):  # all threads that write
            driver.have_done(Lane.WRITE, hung.wait, lambda error: None)
        for _ in range(3):
            answer = await asked(pages, "/healthz")
            assert (answer.status, answer.body) == (503, b"the disk has not answered within 50 ms\n")
        page = await page_of(pages)
        assert page.value("penstock_disk_answers") == 0
        # Two hang, one look waits for them; the broker itself may want to write once.
        assert 3 <= page.value("penstock_disk_work") <= 4, "one look waits, however many have asked"
        hung.set()
        async with asyncio.timeout(10):
            while (await asked(pages, "/healthz")).status != 200:
                pass
