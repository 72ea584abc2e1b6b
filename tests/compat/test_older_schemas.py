"""Schemas beside brokers and clients of 0.3.0: its clients read typed streams."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.base.errors import ErrorCode, RemoteError
from tests.broker_process import broker_environment, eventually
from tests.compat.test_older_version import (
    RELEASED,
    older,
)
from tests.extent import needs_time
from tests.integration.clusters import running_cluster

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
