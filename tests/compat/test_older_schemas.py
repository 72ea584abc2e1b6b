"""Schemas beside brokers and clients of 0.3.0: its clients read typed streams; a broker goes back and comes again."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.base.errors import ErrorCode, PenstockError, RemoteError
from penstock.schemas.rows import SCHEMAS_STREAM
from tests.broker_process import broker_environment, eventually
from tests.compat.test_older_version import (
    RELEASED,
    make_older,
    older,
    start_again,
    upgrade,
)
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster

__all__ = ["older"]  # the fixture

_READS = """
import asyncio, sys
from penstock import aio
async def read():
    async with await aio.connect(sys.argv[1]) as client:
        values = [one.value async for one in client.messages("orders")]
        print(sorted(one.name for one in await client.streams()), values[-1])
        await client.append("orders", [{"subject": "orders.a", "value": b'{"id": 2}'}])
        try:
            await client.append("orders", [{"subject": "orders.a", "value": b'{"id": "no"}'}])
        except Exception as error:
            print(type(error).__name__, "does not fit its schema" in str(error))
asyncio.run(read())
"""


def schema(*more: str) -> penstock.Schema:
    fields = "".join(f',"{name}":{{"type":"integer"}}' for name in more)
    text = f'{{"type":"object","properties":{{"id":{{"type":"integer"}}{fields}}}}}'
    return penstock.Schema(penstock.SchemaKind.JSON_SCHEMA, text)


@needs_time
@pytest.mark.parametrize("older", [RELEASED], indirect=True)
async def test_an_older_client_reads_a_typed_stream_and_is_told_what_does_not_fit(tmp_path: Path, older: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3, schema_check="refuse")
            await client.register_schema("orders", schema())

            async def is_checked() -> bool:
                try:
                    await client.append("orders", [{"subject": "orders.a", "value": b'{"id": "no"}'}])
                except RemoteError as error:
                    return error.code == ErrorCode.SCHEMA_MISMATCH
                return False

            await eventually(is_checked, "a value that does not fit is refused")
            await client.append("orders", [{"subject": "orders.a", "value": b'{"id": 1}'}])
        command = [sys.executable, "-W", "error", "-c", _READS, cluster.brokers[2].client_address]
        environment = broker_environment({"PYTHONPATH": str(older)})
        done = await asyncio.to_thread(subprocess.run, command, env=environment, capture_output=True, text=True)
        streams, told = done.stdout.splitlines()
        assert streams == "['__schemas', 'orders'] b'{\"id\": 1}'", done.stderr
        assert told == "RemoteError True"


@needs_time
@pytest.mark.parametrize("older", [RELEASED], indirect=True)
async def test_schemas_outlive_a_broker_that_goes_back_and_comes_again(tmp_path: Path, older: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders.>", replicas=3)
            await client.register_schema("orders", schema())
        await cluster.in_sync(SCHEMAS_STREAM, {1, 2, 3}, 1)
        back = await cluster.leader_of(SCHEMAS_STREAM)
        make_older(cluster.brokers[back], older)
        start_again(cluster.brokers[back])
        await cluster.all_live()
        await cluster.in_sync(SCHEMAS_STREAM, {1, 2, 3}, back % 3 + 1)
        await answered_or_refused(cluster, back)
        upgrade(cluster.brokers[back])
        start_again(cluster.brokers[back])
        await cluster.all_live()
        async with cluster.client(1) as client:
            versions = (await client.schemas("orders", timeout=60.0)).versions
            assert versions[0].schema == schema()
            assert (await client.register_schema("orders", schema("z"), timeout=60.0)).number == len(versions) + 1


async def answered_or_refused(cluster: ClusterProcesses, back: int) -> None:
    """Let the older broker lead `__schemas`: a registration ends with its version, or with an error that says why."""
    async with cluster.client(back % 3 + 1) as client:
        assert (await client.register_schema("orders", schema("x"), timeout=30.0)).number == 2
    others = [number for number in cluster.brokers if number != back]
    for number in others:
        if await cluster.leader_of(SCHEMAS_STREAM, back) == number:
            start_again(cluster.brokers[number])
            await cluster.all_live()
            await cluster.in_sync(SCHEMAS_STREAM, {1, 2, 3}, number)
    async with cluster.client(others[0]) as client:
        try:
            found = await client.register_schema("orders", schema("y"), timeout=10.0)
        except PenstockError as error:
            assert "upgrade the older of the two" in str(error)  # noqa: PT017 (another broker may lead again)
        else:
            assert found.number == 3
