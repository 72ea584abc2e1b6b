"""Each piece of bad input gets a clear error and loses nothing."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from nats.js.errors import APIError

import penstock
from penstock import aio
from penstock.base import limits
from tests.broker_process import BrokerProcess, eventually, running_broker, running_nats
from tests.extent import each_change, needs_time
from tests.integration.publishers import connected_to
from tests.integration.small_disk import small_disk

BAD_STREAMS = {
    "an empty name": ("", "ok", "needs a name"),
    "a name with a dot": ("a.b", "ok", "may hold only"),
    "a name with a slash": ("../../etc", "ok", "may hold only"),
    "a name too long": ("x" * 129, "ok", "the limit is 128"),
    "an empty subject": ("bad", "", "empty"),
    "a subject with a space": ("bad", "a b", "white space"),
    "a subject with a line end": ("bad", "a\r\nPUB x 0", "white space"),
    "an empty token": ("bad", "a..b", "empty token"),
    "a wildcard in the middle": ("bad", "a.>.b", "before its end"),
    "a subject too long": ("bad", "a." * 600 + "b", "the limit is 1024"),
    "acks for everything": ("bad", ">", "begins with a wildcard"),
}


@each_change
@pytest.mark.parametrize("what", BAD_STREAMS)
async def test_a_stream_that_cannot_be(client: aio.Client, what: str) -> None:
    name, subject, text = BAD_STREAMS[what]
    with pytest.raises((penstock.InvalidConfig, ValueError), match=text):
        await client.create_stream(name, subject)
    assert "bad" not in [info.name for info in await client.streams()]


async def test_every_mistake_of_a_config_is_told_at_once(client: aio.Client) -> None:
    with pytest.raises(penstock.InvalidConfig) as error:
        await client.create_stream("a b", "x..y", max_age_ms=0, segment_bytes=1)
    for word in ("name:", "subject:", "max_age_ms:", "segment_bytes:"):
        assert word in str(error.value)


async def test_a_second_stream_of_the_name(client: aio.Client) -> None:
    first = await client.create_stream("twice", "twice.>")
    again = await client.create_stream("twice", "twice.>")
    assert again.stream_id == first.stream_id
    with pytest.raises(penstock.StreamExists, match=r"subject is 'twice\.>', not 'other\.>'"):
        await client.create_stream("twice", "other.>")
    with pytest.raises(penstock.StreamExists, match="max_messages is None, not 5"):
        await client.create_stream("twice", "twice.>", max_messages=5)
    assert (await client.stream("twice")).config == first.config


async def test_an_offset_out_of_range_says_which_range_there_is(client: aio.Client) -> None:
    info = await client.create_stream("range", "range")
    with pytest.raises(penstock.OffsetOutOfRange) as error:
        await anext(client.read(info, 1))
    assert (error.value.details["log_start"], error.value.details["committed_end"]) == (0, 0)
    for number in range(5):
        await client.publish("range", b"%d" % number)
    with pytest.raises(penstock.OffsetOutOfRange) as error:
        await anext(client.read(info, 6))
    assert (error.value.details["log_start"], error.value.details["committed_end"]) == (0, 5)
    with pytest.raises(penstock.OffsetOutOfRange, match="0 to 4"):
        await client.get(info, 5)
    with pytest.raises(penstock.StreamNotFound, match="nothing-here"):
        await client.get("nothing-here", 0)
    with pytest.raises(penstock.MessageNotFound):
        await client.last(info, key="none")


async def test_a_message_that_is_too_large(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("large", "large", max_message_bytes=1_000)
    async with connected_to(broker.nats_url) as connection:
        js = connection.jetstream()
        with pytest.raises(APIError, match="1001 bytes") as error:
            await js.publish("large", bytes(1_001))
        assert (error.value.code, error.value.err_code) == (400, 10054)
        assert (await js.publish("large", bytes(1_000))).seq == 1
    with pytest.raises(penstock.RemoteError) as refused:
        await client.publish("large", bytes(limits.MESSAGE_BYTES_DEFAULT + 1))
    assert refused.value.code == "too_large"
    with pytest.raises(penstock.RemoteError, match="limit of 1000") as refused:
        await client.append("large", [{"value": bytes(1_001)}])
    assert refused.value.code == "too_large"
    assert (await client.stream("large")).partitions[0].log_end == 1


@needs_time
async def test_a_message_that_no_stream_takes_cuts_nobody_off(tmp_path: Path) -> None:
    size = limits.NATS_FRAME_BYTES_MAX + 1
    with running_nats(tmp_path / "nats", "max_payload: 80MB\nmax_pending: 300MB\n") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client, connected_to(nats_server.url) as connection:
                await client.create_stream("large", "large.>", max_message_bytes=limits.MESSAGE_BYTES_MAX)
                js = connection.jetstream()
                memory_bytes = broker.memory_bytes()
                for number in range(3):
                    assert (await js.publish("large.small", b"before")).seq == 2 * number + 1
                    with pytest.raises(APIError, match=f"{size} bytes") as error:
                        await js.publish("large.huge", bytes(size), timeout=30)
                    assert (error.value.code, error.value.err_code) == (400, 10054)
                    assert (await js.publish("large.small", b"after")).seq == 2 * number + 2
                partition = (await client.stream("large")).partitions[0]
                assert (partition.log_end, partition.dropped) == (6, {"refused": 3})
                assert (await client.status()).nats.reconnects == 0
                assert broker.memory_bytes() - memory_bytes < 32 * limits.MIB


async def test_garbage_on_the_nats_connection_is_stored_as_it_came(broker: BrokerProcess, client: aio.Client) -> None:
    await client.create_stream("garbage", "garbage.>")
    host, _, port = broker.nats_url.removeprefix("nats://").rpartition(":")
    cookie = bytes.fromhex("b90e43b400ff0000")
    with socket.create_connection((host, int(port)), timeout=60) as raw:
        raw.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
        raw.sendall(b"PUB garbage.cookie 8\r\n" + cookie + b"\r\n")
        raw.sendall(b"HPUB garbage.headers 14 15\r\n\r\nnot headers\0x\r\n"[:-2] + b"\r\n")
        raw.sendall(b"PUB garbage.\xff\xfe 1\r\nx\r\n")
        raw.sendall(b"PUB garbage.reply re\rply 1\r\ny\r\n")
        raw.sendall(b"PUB garbage.end 0\r\n\r\nPING\r\n")
        received = b""
        while b"PONG" not in received:
            received += raw.recv(4096)
    reader = client.messages("garbage", follow=True)
    found = {}
    while "garbage.end" not in found:
        message = await anext(reader)
        found[message.subject] = message.value
    await reader.aclose()
    assert found["garbage.cookie"] == cookie
    assert found["garbage.reply"] == b"y"
    assert (await client.stream("garbage")).partitions[0].dropped == {"refused": 1}
    assert (await client.status()).nats.reconnects == 0


@needs_time
async def test_the_disk_fills_up_in_the_middle_of_appends(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server, small_disk(tmp_path / "disk") as disk:
        data_dir = disk.folder / "data"
        with running_broker(data_dir, nats=nats_server.url, before_exec=disk.limit) as broker:
            async with await broker.client() as client, connected_to(nats_server.url) as connection:
                js = connection.jetstream()
                await client.create_stream("disk", "disk", segment_bytes=500_000 if disk.is_mounted else 10_000_000)
                await client.create_stream("ram", "ram", storage="memory")
                acked: list[bytes] = []
                error = None
                while error is None:
                    assert len(acked) < 200, "the disk does not fill up"
                    value = b"%06d" % len(acked) * 10_000
                    try:
                        ack = await js.publish("disk", value)
                    except APIError as refused:
                        error = refused
                    else:
                        assert ack.seq == len(acked) + 1
                        acked.append(value)
                assert (error.code, error.err_code) == (503, 10077)
                for _ in range(5):  # it goes on saying so, and goes on
                    with pytest.raises(APIError) as again:
                        await js.publish("disk", bytes(200_000))
                    assert again.value.err_code == 10077
                    with pytest.raises(penstock.StorageFailed):
                        await client.append("disk", [{"value": bytes(200_000)}])
                assert [message.value async for message in client.messages("disk")] == acked
                assert (await js.publish("ram", b"needs no disk")).seq == 1
                info = (await client.stream("disk")).partitions[0]
                assert info.state == "impeded"
                assert info.log_end == info.committed_end == len(acked)
                status = await client.status()
                assert status.counters["disk_full"] >= 10
                disk.make_room(broker)
                for _ in range(10):
                    value = b"%06d" % len(acked) * 10_000
                    assert (await js.publish("disk", value)).seq == len(acked) + 1
                    acked.append(value)
                assert [message.value async for message in client.messages("disk")] == acked
                assert (await client.stream("disk")).partitions[0].state == "online"
            broker.restart()
            async with await broker.client() as client:
                assert [message.value async for message in client.messages("disk")] == acked


@needs_time
async def test_a_broker_starts_and_serves_reads_on_a_full_disk(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server, small_disk(tmp_path / "disk") as disk:
        if not disk.is_mounted:
            pytest.skip("needs the right to mount a tmpfs")
        with running_broker(disk.folder / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client:
                await client.create_stream("full", "full")
                await client.append("full", [{"value": b"before"}])
            broker.kill()
            disk.fill_up(disk.folder / "rest")
            broker.start()
            async with await broker.client() as client, connected_to(nats_server.url) as connection:
                assert [message.value async for message in client.messages("full")] == [b"before"]
                with pytest.raises(APIError) as error:
                    await connection.jetstream().publish("full", bytes(200_000))
                assert error.value.err_code == 10077
                (disk.folder / "rest").unlink()
                assert (await connection.jetstream().publish("full", b"room")).seq == 2
                assert [message.value async for message in client.messages("full")] == [b"before", b"room"]


def _fails(broker: BrokerProcess, *texts: str, code: int = 1) -> None:
    """It does not start, and says why in plain words."""
    try:
        broker.launch()
        assert broker.wait() == code
        for text in texts:
            assert text in broker.said
        assert "Traceback" not in broker.said
    finally:
        broker.end()


@each_change
def test_a_data_directory_that_is_in_use(broker: BrokerProcess) -> None:
    _fails(BrokerProcess(broker.data_dir), "in use by another broker", str(broker.pid), "--data-dir")


@each_change
def test_a_data_directory_of_a_newer_format(tmp_path: Path) -> None:
    (tmp_path / "penstock.json").write_text(json.dumps({"format": 2, "id": "x", "more": [1]}))
    _fails(BrokerProcess(tmp_path), "has format 2", "reads up to 1", "upgrade")


@each_change
@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": "x"}', '{"id": "y"}', "\xff"])
def test_a_data_directory_that_cannot_be_understood(tmp_path: Path, content: str) -> None:
    (tmp_path / "penstock.json").write_bytes(content.encode("latin-1"))
    _fails(BrokerProcess(tmp_path), "penstock.json", "nothing was touched")
    assert (tmp_path / "penstock.json").read_bytes() == content.encode("latin-1")


@each_change
def test_a_directory_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    _fails(BrokerProcess(tmp_path), "not a data directory of Penstock's", "thesis.tex")
    _fails(BrokerProcess(tmp_path / "thesis.tex"), "is a file; give a directory", code=2)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@needs_time
def test_a_port_that_is_in_use(broker: BrokerProcess, tmp_path: Path) -> None:
    second = BrokerProcess(tmp_path / "data")
    second.listen = broker.client_address
    _fails(second, f"cannot listen on {broker.client_address}", "Address already in use", "--listen")
    # The port of the embedded nats-server may be taken: it says so, and takes another one.
    port = broker.nats_url.rpartition(":")[2]
    third = BrokerProcess(tmp_path / "data", "--nats-port", port)
    third.arguments.remove("0")
    third.arguments.remove("--nats-port")
    try:
        third.start()
        third.logged(f"port {port} is in use by another program; the embedded nats-server listens on")
        assert third.nats_url != broker.nats_url
        assert third.stop() == 0
    finally:
        third.end()


@needs_time
async def test_without_nats_a_broker_serves_reads_and_says_what_is_missing(tmp_path: Path) -> None:
    with running_nats(tmp_path / "nats") as nats_server:
        with running_broker(tmp_path / "data", nats=nats_server.url) as broker:
            async with await broker.client() as client:
                await client.create_stream("reads", "reads")
                await client.publish("reads", b"stored")
            assert broker.stop() == 0
            nats_server.kill()
            broker.start()
            async with await broker.client() as client:
                assert [message.value async for message in client.messages("reads")] == [b"stored"]
                with pytest.raises(penstock.RemoteError, match="NATS has not confirmed") as error:
                    await client.create_stream("later", "later", timeout=0.3)
                assert error.value.code == "nats_unavailable"
                status = await client.status()
                assert status.nats.state == "connecting"
                assert status.nats.last_error == f"{nats_server.url}: Connection refused"
                nats_server.start()

                async def is_connected() -> bool:
                    return (await client.status()).nats.state == "connected"

                await eventually(is_connected, "the broker is connected")
                assert (await client.status()).nats.last_error == f"{nats_server.url}: Connection refused"
