"""`penstock verify` with three real brokers: equal replicas, a flipped bit, and replicas that were compacted apart."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock import aio
from penstock.batch.schema import SCHEMA_BYTES
from tests import warm
from tests.broker_process import DEADLINE_S, broker_environment, eventually, running_nats
from tests.extent import needs_time
from tests.integration.clusters import ClusterProcesses

_ROWS = 20  # of one append


class Said(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def verdicts(self) -> list[str]:
        return [row["verdict"] for row in self.rows]


async def verify(*arguments: object) -> Said:
    """What the command says; the test's own loop goes on meanwhile."""
    done = await asyncio.to_thread(warm.run, ["verify", *map(str, arguments)], broker_environment({}))
    return Said(done.returncode, done.stdout, done.stderr)


@contextmanager
def running_uncleaned(folder: Path, *numbers: int) -> Iterator[ClusterProcesses]:
    """Three brokers, of which these never write a segment anew. Only a command has them look for damage."""
    with running_nats(folder / "nats") as server:
        cluster = ClusterProcesses(folder, server, 3)
        for broker in cluster.brokers.values():
            broker.arguments += ["--scrub-rate", "0"]
        for number in numbers:
            cluster.brokers[number].arguments += ["--cleaner-rate", "0"]
        try:
            cluster.start()
            yield cluster
        finally:
            print(cluster.said)
            cluster.end()


def servers(cluster: ClusterProcesses) -> str:
    return ",".join(broker.client_address for broker in cluster.brokers.values() if broker.is_running)


def disks(cluster: ClusterProcesses) -> list[Path]:
    return [broker.data_dir for broker in cluster.brokers.values()]


async def fill(client: aio.Client, stream: str, appends: int) -> None:
    for number in range(appends):
        value = b"%d " % number * 20
        await client.append(stream, [{"key": b"%d" % (row % 7), "value": value} for row in range(_ROWS)])


async def all_have(cluster: ClusterProcesses, stream: str, end: int) -> None:
    """Once every broker knows all of a stream to be committed."""

    async def look() -> bool:
        parts = [await cluster.partition(stream, number) for number in cluster.brokers]
        return {None if part is None else part.committed_end for part in parts} == {end}

    await eventually(look, "all followers know what is committed")


@needs_time
async def test_three_replicas_are_equal_until_a_bit_flips_in_one(tmp_path: Path) -> None:
    with running_uncleaned(tmp_path, 1, 2, 3) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders", replicas=3, segment_bytes=16_384)
            await fill(client, "orders", 60)
        end = 60 * _ROWS
        await all_have(cluster, "orders", end)
        said = await verify("--server", servers(cluster))
        assert (said.code, said.err) == (0, ""), said
        assert said.out.endswith(f"Sound: 3 logs, {3 * end:,} rows.\n")
        rows = (await verify("orders/0", "--server", servers(cluster), "--json")).rows
        found = [(row["replica"], row["rows"], row["compared_end"]) for row in rows]
        assert found == [(f"broker {number}", end, end) for number in (1, 2, 3)]
        leader = await cluster.leader_of("orders")
        follower = next(number for number in cluster.brokers if number != leader)
        await find_what_is_flipped(cluster, follower, end)


async def _first(data_dir: Path, name: str) -> Path | None:
    """A checkpoint is written a moment after the rows."""
    return min(data_dir.glob(f"streams/*-orders/0/{name}"), default=None)


@needs_time
async def test_what_verify_of_the_files_calls_damage_the_brokers_find_and_mend(tmp_path: Path) -> None:
    with running_uncleaned(tmp_path, 1, 2, 3) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("orders", "orders", replicas=3, segment_bytes=16_384)
            await fill(client, "orders", 30)
        await all_have(cluster, "orders", 30 * _ROWS)
        for number, name in ((1, "*.index"), (2, "checkpoint"), (3, "lineage")):
            find = partial(_first, cluster.brokers[number].data_dir, name)
            path = await eventually(find, f"broker {number} has {name}")
            assert path is not None
            with path.open("r+b") as file:
                file.seek(200 if name == "checkpoint" else 0)
                file.write(b"harm")
            assert (await verify(cluster.brokers[number].data_dir)).code == 1
        said = await verify("orders", "--server", servers(cluster), "--json")
        assert (said.code, said.verdicts) == (1, ["damaged"] * 3), said
        assert [row["compared_end"] for row in said.rows] == [30 * _ROWS] * 3
        assert [row["damage"][0]["base_offset"] for row in said.rows] == [None] * 3
        assert (await verify("orders", "--server", servers(cluster))).code == 0

        async def are_mended() -> bool:
            return (await verify(*disks(cluster))).code == 0

        await eventually(are_mended, "the files are sound")


def first_segment(cluster: ClusterProcesses, number: int) -> Path:
    return min(cluster.brokers[number].data_dir.glob("streams/*-orders/0/*.arrows"))


def flipped(segment: Path) -> bytes:
    """What a file holds once a bit of its first batch has flipped."""
    data = bytearray(segment.read_bytes())
    data[SCHEMA_BYTES + 900] ^= 4
    segment.write_bytes(data)
    return bytes(data)


async def find_what_is_flipped(cluster: ClusterProcesses, number: int, end: int) -> None:
    segment = first_segment(cluster, number)
    flipped(segment)
    said = await verify("orders", "--server", servers(cluster), "--json")
    assert said.code == 1, said
    by_name = {row["replica"]: row for row in said.rows}
    damaged = by_name.pop(f"broker {number}")
    assert [row["verdict"] for row in by_name.values()] == ["sound", "sound"]
    (place,) = damaged["damage"]
    assert place["file"].endswith(f"{segment.name} of broker {number}")
    assert (place["position"], place["base_offset"], place["end_offset"]) == (SCHEMA_BYTES, 0, _ROWS)
    assert place["expected"].startswith("CRC-32C")
    assert (damaged["verdict"], damaged["rows"]) == ("damaged", end - _ROWS)

    async def is_mended() -> bool:
        return (await verify("orders", "--server", servers(cluster))).code == 0

    await eventually(is_mended, "it is mended from another replica")
    for broker in cluster.brokers.values():
        assert broker.stop() == 0
    segment = first_segment(cluster, number)  # another file
    data = flipped(segment)
    said = await verify(*disks(cluster), "--stream", "orders")
    assert said.code == 1
    assert f"DAMAGE in {segment} at byte {SCHEMA_BYTES}: " in said.out
    assert segment.read_bytes() == data


@needs_time
async def test_replicas_that_were_compacted_at_different_times_do_not_differ(tmp_path: Path) -> None:
    with running_uncleaned(tmp_path, 3) as cluster:
        await cluster.all_live()
        async with cluster.client(1) as client:
            config = {"compact": True, "dedup_window_ms": None, "segment_bytes": 16_384}
            for number in range(6):  # a leader whose cleaner is off finds nothing that could go
                await client.create_stream("prices", "prices", replicas=3, **config)  # type: ignore[arg-type]
                if await cluster.leader_of("prices") != 3:
                    break
                await client.delete_stream("prices")
                await client.create_stream(f"other-{number}", f"other-{number}", replicas=3)
            await fill(client, "prices", 120)
        end = 120 * _ROWS
        await all_have(cluster, "prices", end)

        async def apart() -> Said | None:
            said = await verify("prices", "--server", servers(cluster), "--json")
            assert said.code == 0, said
            counts = {row["replica"]: row["rows"] for row in said.rows}
            assert counts.pop("broker 3") == end
            return said if max(counts.values()) < end else None

        found = await eventually(apart, "two of them are compacted", 2 * DEADLINE_S)
        assert found is not None
        assert found.verdicts == ["sound"] * 3
        assert all(one["legal"] for row in found.rows for one in row["differences"])
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
        said = await verify(*disks(cluster), "--stream", "prices")
        assert (said.code, said.err) == (0, ""), said
        assert "has deleted" in said.out


@needs_time
async def test_ctrl_c_ends_it_and_a_broker_that_is_away_is_named(cluster: ClusterProcesses) -> None:
    async with cluster.client(1) as client:
        await client.create_stream("orders", "orders", replicas=3)
        await fill(client, "orders", 60)
    end = 60 * _ROWS
    await all_have(cluster, "orders", end)
    # As a user runs it: with -W error Python complains of the file of a module whose import is interrupted.
    command = [sys.executable, "-m", "penstock", "verify", "orders", "--server", servers(cluster), "--rate", "1KiB"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        try:
            await eventually(lambda: all_are_asked(cluster), "it asks all brokers")
            process.send_signal(signal.SIGINT)
            out, err = await asyncio.to_thread(ended_by_ctrl_c, process)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, b"", b"")
    leader = await cluster.leader_of("orders")
    away = next(number for number in cluster.brokers if number != leader)
    cluster.brokers[away].kill()
    said = await verify("orders", "--server", servers(cluster), "--json", "--timeout", "20s")
    assert said.code == 1
    rows = {row["replica"]: (row["verdict"], row["rows"]) for row in said.rows}
    assert rows.pop(f"broker {away}") == ("not verified", 0)
    assert set(rows.values()) == {("sound", end)}


def ended_by_ctrl_c(process: subprocess.Popen[bytes]) -> tuple[bytes, bytes]:
    """Return the output of a command that has got a SIGINT; press again if Python has lost it.

    CPython ignores an exception in the callback of an import's lock, a KeyboardInterrupt like any other, and says so.
    """
    try:
        return process.communicate(timeout=DEADLINE_S / 4)
    except subprocess.TimeoutExpired:
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert b"_get_module_lock" in err, err
    return out, b""


async def all_are_asked(cluster: ClusterProcesses) -> bool:
    """Whether a command is connected to each, beside who asks that."""
    states = [await cluster.status(number) for number in cluster.brokers]
    return all(state is not None and state.connections >= 2 for state in states)
