"""Encrypted streams of real brokers: nothing of a message can be seen on the disk, all of it be read with the key."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

import penstock
from penstock import aio
from penstock.commitlog.files.files import holds_messages
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.keys import parse_keys
from penstock.vfs.real import RealVfs
from penstock.vfs.rewrapping import key_ids
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.cli_app import app
from tests.cli_process import command
from tests.extent import each_change, needs_time
from tests.integration.clusters import ClusterProcesses, running_cluster
from tests.integration.publishers import connected_to
from tests.integration.test_repair import flip

SECRET = b"the treasure lies under the old oak"


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "penstock.keys"
    run("keys", "new", "first", "--file", str(file))
    return file


def broker_with(data: Path, keys: Path, *arguments: str) -> BrokerProcess:
    return BrokerProcess(data, "--encryption-keys-file", str(keys), *arguments)


@pytest.fixture
def broker(tmp_path: Path, keys: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "data", "--encryption-keys-file", str(keys)) as running:
        yield running


def files(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(data.rglob("*")) if path.is_file()}


def assert_hidden(data: Path, *secrets: bytes) -> None:
    found = files(data)
    assert any(path.suffix == ".arrows" for path in found)
    for path, content in found.items():
        for secret in secrets:
            assert secret not in content, path


def segments(data: Path, stream: str) -> list[Path]:
    return sorted(data.glob(f"streams/*-{stream}/0/*.arrows"))


async def publish(broker: BrokerProcess, subject: str, count: int) -> None:
    async with connected_to(broker.nats_url) as nats:
        for number in range(count):
            headers = {"Nats-Msg-Id": f"id-of-{number}", "Penstock-Key": f"key-of-{number}"}
            await nats.jetstream().publish(subject, SECRET + b" %d" % number, headers=headers)


async def values(client: aio.Client, stream: str) -> list[bytes]:
    return [value async for batch in client.read(stream) for value in batch.column("value").to_pylist()]


@needs_time
async def test_what_was_published_is_nowhere_on_the_disk_and_there_after_a_kill(broker: BrokerProcess) -> None:
    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>", encryption="aes-256-gcm", segment_bytes=65_536)
        await publish(broker, "orders.hidden-subject", 100)
    assert_hidden(broker.data_dir, b"treasure", b"hidden-subject", b"id-of-", b"key-of-")
    broker.restart()
    async with await broker.client() as client:
        assert await values(client, "orders") == [SECRET + b" %d" % number for number in range(100)]
        await publish(broker, "orders.hidden-subject", 3)  # their ids are known still
        assert (await client.stream("orders")).partitions[0].log_end == 100
    assert_hidden(broker.data_dir, b"treasure", b"hidden-subject", b"id-of-", b"key-of-")


@each_change
async def test_a_large_fetch_is_the_same_as_of_a_plain_stream(broker: BrokerProcess) -> None:
    rows = [{"value": os.urandom(30_000) + b"%d" % number} for number in range(200)]
    async with await broker.client() as client:
        for name, encryption in (("plain", "none"), ("hidden", "aes-256-gcm")):
            await client.create_stream(name, name, encryption=encryption)  # type: ignore[arg-type]
            for begin in range(0, 200, 40):
                await client.append(name, rows[begin : begin + 40])
        assert await values(client, "hidden") == await values(client, "plain") == [row["value"] for row in rows]
        all_of_them = penstock.Filter(subject="hidden")
        found = [batch.num_rows async for batch in client.read("hidden", where=all_of_them, columns=["offset"])]
        assert sum(found) == 200
    assert_hidden(broker.data_dir / "streams" / segments(broker.data_dir, "hidden")[0].parts[-3], rows[7]["value"][:64])


@needs_time
async def test_without_its_key_a_stream_is_not_there_and_nothing_of_it_is_touched(
    broker: BrokerProcess, keys: Path, tmp_path: Path
) -> None:
    async with await broker.client() as client:
        await client.create_stream("hidden", "hidden.>", encryption="aes-256-gcm")
        await client.create_stream("open", "open.>")
        await publish(broker, "hidden.a", 20)
        await publish(broker, "open.a", 20)
    assert broker.stop() == 0
    before = {path: hashlib.sha256(one).digest() for path, one in files(broker.data_dir / "streams").items()}
    right = keys.read_text()
    other = tmp_path / "other.keys"
    run("keys", "new", "second", "--file", str(other))
    wrong = tmp_path / "wrong.keys"
    run("keys", "new", "first", "--file", str(wrong))
    for text, reason in (
        (other.read_text(), "encrypted with the key 'first', which is not among the keys here"),
        (wrong.read_text(), "it is encrypted with a key 'first' that differs from the key of that id here"),
    ):
        keys.write_text(text)
        broker.start()
        broker.logged(f"stream 'hidden': cannot open the log: .*{reason}")
        async with await broker.client() as client:
            assert len(await values(client, "open")) == 20
            with pytest.raises(penstock.PenstockError, match="cannot open the log") as raised:
                await values(client, "hidden")
            assert isinstance(raised.value, penstock.RemoteError)
            assert (raised.value.code, raised.value.details) == ("no_encryption_key", {"key_id": "first"})
        for arguments in (("read", "hidden"), ("verify", "hidden"), ("status",)):
            out, said = await command(broker.client_address, *arguments, code=3 if arguments == ("status",) else 1)
            assert "key 'first'" in out + said
            assert "Errno" not in out + said
            assert arguments == ("status",) or "disk" not in out + said
        assert broker.stop() == 0
    keys.unlink()
    broker.arguments = broker.arguments[:2]
    broker.start()
    broker.logged("stream 'hidden': cannot open the log: the stream is encrypted, and this broker has no keys")
    assert broker.stop() == 0
    after = {path: hashlib.sha256(one).digest() for path, one in files(broker.data_dir / "streams").items()}
    assert {path: one for path, one in after.items() if "hidden" in str(path)} == {
        path: one for path, one in before.items() if "hidden" in str(path)
    }
    keys.write_text(right)
    broker.arguments += ["--encryption-keys-file", str(keys)]
    broker.start()
    async with await broker.client() as client:
        assert len(await values(client, "hidden")) == 20


@needs_time
async def test_a_stream_whose_key_was_missing_is_there_once_the_keys_were_read_again(
    broker: BrokerProcess, keys: Path, tmp_path: Path
) -> None:
    async with await broker.client() as client:
        await client.create_stream("hidden", "hidden.>", encryption="aes-256-gcm")
        await publish(broker, "hidden.a", 20)
    assert broker.stop() == 0
    right = keys.read_text()
    other = tmp_path / "other.keys"
    run("keys", "new", "second", "--file", str(other))
    keys.write_text(other.read_text())
    broker.start()
    async with await broker.client() as client:
        with pytest.raises(penstock.PenstockError, match="and send it SIGHUP"):
            await values(client, "hidden")
        broker.signal(signal.SIGHUP)  # in vain: the key is not there yet
        broker.logged("were read again: new files take 'second', of second")
        keys.write_text(other.read_text() + right)
        broker.signal(signal.SIGHUP)
        broker.logged("were read again: new files take 'second', of second, first")

        async def is_online() -> bool:
            return str((await client.stream("hidden")).partitions[0].state) == "online"

        await eventually(is_online, "the stream is there")
        await publish(broker, "hidden.a", 25)  # of which it knows the first 20 still
        assert len(await values(client, "hidden")) == 25


@needs_time
async def test_a_follower_whose_key_was_missing_follows_once_its_keys_were_read_again(tmp_path: Path) -> None:
    files = {number: tmp_path / f"{number}.keys" for number in (1, 2, 3)}
    for number, file in files.items():
        run("keys", "new", f"key-{number}", "--file", str(file))
    with running_cluster(tmp_path, started=False) as cluster:
        for number, one in cluster.brokers.items():
            one.arguments += ["--encryption-keys-file", str(files[number])]
        cluster.start()
        await cluster.all_live()
        async with cluster.client(1) as client:
            await client.create_stream("hidden", "hidden.>", encryption="aes-256-gcm", replicas=3)
            await client.append("hidden", [{"subject": "hidden.a", "value": SECRET}] * 20)
            follower = await cluster.leader_of("hidden") % 3 + 1
        broker, right = cluster.brokers[follower], files[follower].read_text()
        assert broker.stop() == 0
        files[follower].unlink()
        run("keys", "new", "another", "--file", str(files[follower]))
        broker.start()
        broker.logged("stream 'hidden': cannot open the log")
        files[follower].write_text(files[follower].read_text() + right)
        broker.signal(signal.SIGHUP)
        async with cluster.client(follower % 3 + 1) as client:
            await client.append("hidden", [{"subject": "hidden.a", "value": SECRET}] * 5)

            async def is_in_sync() -> bool:
                return follower in (await client.stream("hidden")).partitions[0].isr

            await eventually(is_in_sync, "the follower is in sync again")


@each_change
async def test_another_key_takes_the_place_of_the_first_while_the_broker_runs(
    broker: BrokerProcess, keys: Path
) -> None:
    raw = RealVfs(broker.data_dir)

    def used() -> set[str]:
        paths = [str(path.relative_to(broker.data_dir)) for path in segments(broker.data_dir, "orders")]
        return {one for path in paths for one in key_ids(raw, path)}

    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>", encryption="aes-256-gcm", segment_bytes=65_536)
        await client.append("orders", [{"subject": "orders.a", "value": SECRET * 100}] * 40)
        assert used() == {"first"}
        run("keys", "new", "second", "--file", str(keys))
        broker.signal(signal.SIGHUP)
        broker.logged("were read again: new files take 'second', of second, first")
        await client.append("orders", [{"subject": "orders.a", "value": SECRET * 100}] * 40)
        assert used() == {"first", "second"}
        run("keys", "rewrap", str(broker.data_dir), "--encryption-keys-file", str(keys))
        assert used() == {"second"}
        assert len(await values(client, "orders")) == 80
        keys.write_text(keys.read_text().splitlines()[0])
        broker.signal(signal.SIGHUP)
        broker.logged(r"does not have the key first any more.*`penstock keys list` shows")
        await client.append("orders", [{"subject": "orders.a", "value": SECRET * 100}] * 40)
        assert len(await values(client, "orders")) == 120
    broker.restart()
    async with await broker.client() as client:
        assert len(await values(client, "orders")) == 120


async def test_a_key_that_is_still_used_and_is_deleted_from_the_file_stays_until_a_restart(
    broker: BrokerProcess, keys: Path
) -> None:
    row = {"subject": "orders.a", "value": SECRET * 100}
    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>", encryption="aes-256-gcm", segment_bytes=65_536)
        await client.append("orders", [row] * 40)
        keys.unlink()
        run("keys", "new", "second", "--file", str(keys))
        broker.signal(signal.SIGHUP)
        broker.logged("does not have the key first any more: .* stays in memory until this broker stops")
        await client.append("orders", [row] * 40)
        assert len(await values(client, "orders")) == 80


@each_change
async def test_keys_that_cannot_be_read_again_leave_those_of_before(broker: BrokerProcess, keys: Path) -> None:
    keys.write_text("nonsense")
    broker.signal(signal.SIGHUP)
    broker.logged("cannot be read again, those of before stay: line 1: the key has 0 bytes")
    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>", encryption="aes-256-gcm")
        await publish(broker, "orders.a", 1)
    assert "nonsense" not in broker.said


@needs_time
async def test_the_tools_read_the_files_with_the_keys(broker: BrokerProcess, keys: Path, tmp_path: Path) -> None:
    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>", encryption="aes-256-gcm")
        await publish(broker, "orders.a", 5)
    assert broker.stop() == 0  # what a crash may have torn is not judged
    (segment,) = segments(broker.data_dir, "orders")
    others = tmp_path / "others.keys"
    run("keys", "new", "other", "--file", str(others))
    for wrong in ((), ("--encryption-keys-file", str(others))):
        found = run("verify", str(broker.data_dir), *wrong, code=1)
        assert "it is encrypted" in found
        assert "Errno" not in found
    option = ("--encryption-keys-file", str(keys))
    rows = [json.loads(line) for line in run("dump", str(segment), "--messages", "--json", *option).splitlines()]
    assert [row["value"] for row in rows if "value" in row] == [(SECRET + b" %d" % one).decode() for one in range(5)]
    assert "sound" in run("verify", str(broker.data_dir), *option)
    for tool in ("dump", "verify"):
        assert "it is encrypted, and no keys are given" in run(tool, str(segment), code=1)
    content = bytearray(segment.read_bytes())
    content[-100] ^= 16
    segment.write_bytes(content)
    run("verify", str(broker.data_dir), *option, code=1)


def in_plain(segment: Path, keys: Path) -> None:
    """Put what it holds there unencrypted; whoever has no keys writes there what he likes."""
    vfs = EncryptedVfs(RealVfs(segment.parent), parse_keys(keys.read_text()), holds_messages)
    with closing(vfs.open(segment.name, read_only=True)) as file:
        content = file.read_at(0, file.size())
    segment.unlink()
    segment.write_bytes(content)


@needs_time
async def test_a_plain_file_in_the_place_of_an_encrypted_one_is_damage_to_the_broker_and_to_all_tools(
    broker: BrokerProcess, keys: Path
) -> None:
    async with await broker.client() as client:
        await client.create_stream("orders", "orders.>", encryption="aes-256-gcm")
        await client.create_stream("plain", "plain.>")
        await publish(broker, "orders.a", 5)
    assert broker.stop() == 0
    (segment,) = segments(broker.data_dir, "orders")
    in_plain(segment, keys)
    forged = segment.read_bytes()
    broker.start()
    broker.logged("stream 'orders' is read-only: .*it is not encrypted, and its stream is")
    async with await broker.client() as client:
        with pytest.raises(penstock.PenstockError, match="not encrypted"):
            await values(client, "orders")
        with pytest.raises(penstock.PenstockError):
            await client.append("orders", [{"subject": "orders.a", "value": SECRET}])
    for tool in ("verify", "doctor", "status"):
        said = await command(broker.client_address, tool, "--json", code=3 if tool == "status" else 1)
        assert "it is not encrypted, and its stream is" in said[0], tool
    assert broker.stop() == 0
    assert segment.read_bytes() == forged
    for option in (("--encryption-keys-file", str(keys)), ()):
        for path in (broker.data_dir, segment, segment.parent):
            assert "it is not encrypted, and its stream is" in run("verify", str(path), *option, code=1)
        assert "it is not encrypted, and its stream is" in run("dump", str(segment), *option, code=1)


@needs_time
async def test_a_compacted_compressed_stream_is_encrypted_as_well(broker: BrokerProcess, keys: Path) -> None:
    config = {"compact": True, "dedup_window_ms": None, "segment_bytes": 16_384, "compression": "zstd"}
    async with await broker.client() as client:
        await client.create_stream("prices", "prices", encryption="aes-256-gcm", **config)  # type: ignore[arg-type]
        for number in range(60):
            rows = [{"key": b"hidden-%d" % key, "value": SECRET + b" %d" % number} for key in range(10)]
            await client.append("prices", rows)

        async def is_compacted() -> bool:
            return len(await values(client, "prices")) < 200

        await eventually(is_compacted, "most of what was overwritten is gone")
    assert any(path.name.count(".") == 2 for path in segments(broker.data_dir, "prices"))
    assert_hidden(broker.data_dir, b"treasure", b"hidden-")
    broker.restart()
    async with await broker.client() as client:
        latest = {one.key: one.value async for one in client.messages("prices")}
        assert latest == {b"hidden-%d" % key: SECRET + b" 59" for key in range(10)}
        assert_hidden(broker.data_dir, b"treasure", b"hidden-")


@each_change
async def test_groups_and_staged_rows_are_encrypted_where_the_settings_say_so(tmp_path: Path, keys: Path) -> None:
    options = ("--encryption-keys-file", str(keys), "--encrypt-internal-streams")
    with running_broker(tmp_path / "data", *options) as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>", encryption="aes-256-gcm")
            await publish(broker, "orders.a", 3)
            async with client.consumer("orders", "hidden-group") as consumer:
                await anext(consumer)
            (at,) = await client.groups.offsets("hidden-group", "orders")
            assert at.offset == 3
        assert_hidden(broker.data_dir, b"hidden-group", b"treasure")


@each_change
async def test_keys_in_the_environment_do_and_are_shown_nowhere(tmp_path: Path, keys: Path) -> None:
    (line,) = keys.read_text().splitlines()
    with running_broker(tmp_path / "data", environment={"PENSTOCK_ENCRYPTION_KEYS": line}) as broker:
        async with await broker.client() as client:
            await client.create_stream("orders", "orders.>", encryption="aes-256-gcm")
            await publish(broker, "orders.a", 3)
            assert len(await values(client, "orders")) == 3
        assert line.split()[1] not in broker.said
        assert_hidden(broker.data_dir, b"treasure", line.split()[1].encode())


@each_change
def test_a_file_of_keys_that_others_can_read_is_said_where_that_may_be(tmp_path: Path, keys: Path) -> None:
    keys.chmod(0o644)
    with running_broker(
        tmp_path / "data", "--allow-open-secrets", "--encryption-keys-file", str(keys), "--http-token", "seen"
    ) as broker:
        broker.logged("holds a secret, and with mode 0644 others than its owner may use it: chmod 600")
        broker.logged("--http-token: every user of this machine can read it in the list of processes")


@needs_time
async def test_a_broker_without_keys_makes_no_encrypted_stream_and_restores_none(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    async with await broker.client() as client:
        await client.create_stream("a-plain-one", "a.>")
        await client.create_stream("orders", "orders.>", encryption="aes-256-gcm")
        await publish(broker, "orders.a", 3)
    backup = str(tmp_path / "backup")
    await command(broker.client_address, "backup", backup)
    assert any(SECRET in path.read_bytes() for path in Path(backup).rglob("*.arrows"))  # as its page warns
    with running_broker(tmp_path / "without") as other:
        create = ("stream", "create", "p", "p.>", "--encryption", "aes-256-gcm")
        for arguments in (create, ("restore", backup)):
            _, said = await command(other.client_address, *arguments, code=1)
            assert "broker 1 has no encryption keys; set encryption_keys_file" in said
            assert "`penstock keys new` makes a key" in said
            async with await other.client() as client:
                assert await client.streams() == []


# Several brokers


def give_keys(cluster: ClusterProcesses, folder: Path, *numbers: int) -> None:
    """Each of these brokers gets keys of its own, and starts again with them."""
    for number in numbers:
        file = folder / f"{number}.keys"
        run("keys", "new", f"of-broker-{number}", "--file", str(file))
        broker = cluster.brokers[number]
        broker.kill()
        broker.arguments += ["--encryption-keys-file", str(file)]
        broker.launch()


@needs_time
@pytest.mark.parametrize("harm", ["flip", "plain"])
async def test_a_damaged_replica_is_mended_from_others_with_other_keys(tmp_path: Path, harm: str) -> None:
    with running_cluster(tmp_path) as cluster:
        give_keys(cluster, tmp_path, 1, 2, 3)
        await cluster.all_live()
        async with cluster.client(1) as client:
            stream = await client.create_stream(
                "orders", "orders.>", replicas=3, segment_bytes=1 << 20, encryption="aes-256-gcm"
            )
            for _ in range(3):
                await client.append(stream, [{"subject": "orders.a", "value": SECRET * 100}] * 300)
        leader = await cluster.leader_of("orders")
        await cluster.in_sync("orders", {1, 2, 3}, leader)
        harmed = next(number for number in cluster.brokers if number != leader)
        for broker in cluster.brokers.values():
            assert_hidden(broker.data_dir, b"treasure")
        cluster.brokers[harmed].stop()
        path = segments(cluster.brokers[harmed].data_dir, "orders")[0]
        path.with_suffix(".index").unlink()  # else nobody looks at it before it is read
        if harm == "flip":
            flip(path)
        else:
            in_plain(path, tmp_path / f"{harmed}.keys")
        cluster.brokers[harmed].launch()
        cluster.brokers[harmed].logged("is mended: 1 damaged range")
        await cluster.in_sync("orders", {1, 2, 3}, leader)
        cluster.brokers[leader].kill()
        await cluster.in_sync("orders", {1, 2, 3} - {leader}, harmed)
        async with cluster.client(harmed) as client:
            assert await values(client, "orders") == [SECRET * 100] * 900
        for aside in path.parent.glob("*.cut-0"):
            assert harm == "plain"
            aside.unlink()  # as somebody has put it there
        for broker in cluster.brokers.values():
            assert_hidden(broker.data_dir, b"treasure")


@needs_time
async def test_a_stream_is_not_made_where_a_broker_that_would_hold_it_has_no_keys(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        give_keys(cluster, tmp_path, 1, 2)
        await cluster.all_live()
        async with cluster.client(1) as client:
            with pytest.raises(penstock.PenstockError, match="broker 3 has no encryption keys"):
                await client.create_stream("orders", "orders.>", replicas=3, encryption="aes-256-gcm")
            assert await client.streams() == []
            stream = await client.create_stream("orders", "orders.>", replicas=2, encryption="aes-256-gcm")
            assert set(stream.partitions[0].replicas) == {1, 2}
