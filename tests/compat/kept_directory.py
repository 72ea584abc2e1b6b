"""A data directory that a released version left, and what must be found in it: `python -m tests.compat.kept_directory`.

Rules: a kept directory is an archive, written once, by the version that its name says, and never changed. It is small,
and holds what a version leaves in each kind of file: keys, headers, null values, a producer's batch, two partitions, a
compacted stream, offsets of a group, users.

    python -m tests.compat.kept_directory tests/compat/golden/0.3.0.tar.bz2
"""

from __future__ import annotations

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from penstock import Credentials, aio
from penstock.client.users import password_credential, rule
from tests.broker_process import BrokerProcess, running_broker

USER = Credentials.password("ann", "a password of this test alone")
ROWS: list[dict[str, Any]] = [
    {"subject": "orders.eu", "key": b"k1", "value": b"1", "headers": {"Trace": "t1"}},
    {"subject": "orders.us", "key": b"k2", "value": b"2"},
    {"subject": "orders.eu", "key": b"k1", "value": None},
]
IN_PARTITIONS = [[b"zero"], [b"one", b"two"]]
COMMITTED = 2


async def fill(broker: BrokerProcess) -> None:
    """Write what `check` looks for."""
    async with await broker.client() as client:
        await client.users.create(USER.name, password_credential(USER.secret), rules=[rule("admin")])
        await client.create_stream("orders", "orders.>", max_messages=1_000, allow_message_ttl=True)
        await client.create_stream("split", "split", partitions=2)
        await client.create_stream("latest", "latest", compact=True)
        for row in ROWS[:2]:
            await client.publish(row["subject"], row["value"], key=row["key"], headers=row.get("headers"))
        await client.producer("orders").append(ROWS[2:])
        for number, values in enumerate(IN_PARTITIONS):
            await client.append("split", [{"value": value} for value in values], partition=number)
        await client.append("latest", [{"key": b"k", "value": b"%d" % number} for number in range(3)])
        await client.groups.commit("mail", "orders", {0: COMMITTED})


async def check(broker: BrokerProcess) -> None:
    """See that all is there, and that the log goes on behind it."""
    async with aio.connect(broker.client_address, credentials=USER) as client:
        assert await _rows(client, "orders") == [(row["subject"], row["key"], row["value"]) for row in ROWS]
        assert (await client.get("orders", 0)).headers["Trace"] == "t1"
        for number, values in enumerate(IN_PARTITIONS):
            assert [value for _, _, value in await _rows(client, "split", number)] == values
        assert (await _rows(client, "latest"))[-1][1:] == (b"k", b"2")
        config = (await client.stream("orders")).config
        assert (config.max_messages, config.allow_message_ttl) == (1_000, True)
        (offset,) = await client.groups.offsets("mail", "orders")
        assert (offset.partition, offset.offset) == (0, COMMITTED)
        assert (await client.publish("orders.eu", b"4")).offset == len(ROWS)


async def _rows(client: aio.Client, stream: str, partition: int = 0) -> list[tuple[str, bytes | None, bytes | None]]:
    found = []
    async for batch in client.read(stream, partition=partition):
        columns = [batch.column(name).to_pylist() for name in ("subject", "key", "value")]
        found += list(zip(*columns, strict=True))
    return found


def write(target: Path) -> None:
    """Let a broker of this version write the directory, and put it into the archive `target`."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with running_broker(data, "--auth") as broker:
            broker.credentials = Credentials.parsed((data / "admin.credentials").read_text())
            asyncio.run(fill(broker))
            assert broker.stop() == 0, broker.said
        with tarfile.open(target, "x:bz2") as archive:
            archive.add(data, "data")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
