"""Bytes through TLS on sockets that hold little: all of them come, in order, and nothing waits for ever."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode
from penstock.broker.config.tls_settings import BrokerTls
from penstock.broker.socket_api.output import Output, WriteOutcome
from penstock.broker.socket_api.shared_budget import SharedBudget
from penstock.broker.socket_api.socket_watch import SocketWatch
from penstock.broker.transport.tls import ServerTls
from penstock.broker.transport.tls_handshakes import TlsHandshakes
from penstock.broker.transport.transport import HandshakeError, PlainTransport, TlsTransport, is_encrypted_by_kernel
from penstock.messages import HelloRequest
from penstock.node.step import FileRange
from penstock.vfs.real import RealVfs
from tests.certificates import Authority

SMALL_BUFFER_BYTES = 4_096
HELLO = HelloRequest(client_name="test", client_version="0")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def policy(authority: Authority) -> ServerTls:
    pair = authority.issue("broker")
    return ServerTls(BrokerTls(cert_file=pair.cert, key_file=pair.key))


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection that holds little; ours first, which never blocks."""
    with socket.socket() as listener, socket.socket() as theirs:
        for one in (listener, theirs):
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                one.setsockopt(socket.SOL_SOCKET, option, SMALL_BUFFER_BYTES)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        theirs.connect(listener.getsockname())
        ours, _ = listener.accept()
        ours.setblocking(False)
        with ours:
            yield ours, theirs


def handshakes(loop: asyncio.AbstractEventLoop) -> TlsHandshakes:
    return TlsHandshakes(loop, lambda: 0)


@contextmanager
def client_side(
    theirs: socket.socket, authority: Authority, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=authority.ca)
    context.maximum_version = version
    with context.wrap_socket(theirs, server_hostname="127.0.0.1", do_handshake_on_connect=False) as client:
        yield client


class Served:
    """Our end on the loop: what has come, and what goes out of a queue as a connection would send it."""

    def __init__(self, transport: TlsTransport, loop: asyncio.AbstractEventLoop, chance: random.Random) -> None:
        self.transport = transport
        self.received = bytearray()
        self.begun, self.ended = asyncio.Event(), asyncio.Event()
        self.output = Output(transport, SharedBudget(1 << 30), SharedBudget(10), lambda: 0)
        self._chance = chance
        self.watch = SocketWatch(loop, transport, self._readable, self._writable)
        self.watch.read(True)

    def _readable(self) -> None:
        try:
            data = self.transport.recv(self._chance.choice((1, 100, 16_384, 100_000)))
        except BlockingIOError:
            return
        self.received += data
        self.begun.set()  # the handshake is over
        if not data:
            self.watch.read(False)
            self.ended.set()

    def _writable(self) -> None:
        written = self.output.write()
        while written is WriteOutcome.COLD:
            assert self.output.cold is not None
            self.output.cold.read()
            self.output.warmed(None)
            written = self.output.write()
        self.watch.write(written is WriteOutcome.MORE)

    def send(self) -> None:
        self.watch.write(True)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("seed", range(3))
async def test_all_comes_both_ways_through_sockets_that_hold_little(
    tmp_path: Path, authority: Authority, policy: ServerTls, version: ssl.TLSVersion, seed: int
) -> None:
    chance = random.Random(seed)
    up = chance.randbytes(60_000)
    pieces = [chance.randbytes(chance.choice((1, 50, 16_384, 16_385, 70_000))) for _ in range(5)]
    file = chance.randbytes(60_000)
    (tmp_path / "file").write_bytes(file)
    extent = FileRange(RealVfs(tmp_path), "file", 0, len(file), lambda path, position, reason: None)
    down = b"".join(pieces) + file + b"end"
    with connected() as (ours, theirs), client_side(theirs, authority, version) as client:
        loop = asyncio.get_running_loop()
        transport = TlsTransport(ours, "test", policy, handshakes(loop))
        served = Served(transport, loop, chance)

        def talk() -> bytes:
            client.do_handshake()
            sender = threading.Thread(target=client.sendall, args=(up,))
            sender.start()
            got = bytearray()
            while len(got) < len(down):
                data = client.recv(len(got) % 100_000 + 1)
                assert data
                got += data
            sender.join()
            client.settimeout(0.0)
            with pytest.raises(ssl.SSLWantReadError):
                client.unwrap()
            return bytes(got)

        talking = asyncio.create_task(asyncio.to_thread(talk))
        async with asyncio.timeout(600):  # on a busy machine each full buffer waits for a probe of the kernel's
            await served.begun.wait()
            served.output.add(*pieces)
            parts = served.output.prepare(extent)
            assert parts is not None
            served.output.send(b"", parts)
            served.output.add(b"end")
            served.send()
            assert await talking == down
            await served.ended.wait()
        assert bytes(served.received) == up
        served.watch.close()
        transport.close()


async def test_a_record_that_was_begun_with_bytes_that_are_gone_breaks_the_connection(
    authority: Authority, policy: ServerTls
) -> None:
    with connected() as (ours, theirs), client_side(theirs, authority) as client:
        transport = TlsTransport(ours, "test", policy, handshakes(asyncio.get_running_loop()))
        await shaken(transport, client)
        with suppress(BlockingIOError):
            while True:
                transport.send(bytes(limits.TLS_RECORD_BYTES))
        with pytest.raises(ConnectionAbortedError, match="bytes that do not exist any more"):
            transport.send(b"shorter")
        transport.close()


async def shaken(transport: TlsTransport, client: ssl.SSLSocket) -> None:
    """Both have shaken hands."""
    task = asyncio.create_task(asyncio.to_thread(client.do_handshake))
    while not task.done() or transport._state.name != "OPEN":
        try:
            transport.recv(1)
        except BlockingIOError:
            await asyncio.sleep(0)
    await task


async def test_what_speaks_no_tls_is_heard_and_told(policy: ServerTls) -> None:
    for first in (b"\x16\x03\x00\x00 a frame of 790 bytes", b"\x16", b"\x16\x03", b"\x30\x00\x00\x00"):
        with connected() as (ours, theirs):
            transport = TlsTransport(ours, "test", policy, handshakes(asyncio.get_running_loop()))
            theirs.sendall(first)
            theirs.shutdown(socket.SHUT_WR)
            got = b""
            while (data := await received(transport)) != b"":
                got += data
            assert got == first
            refusal = transport.refusal(HELLO, is_peer=False)
            assert refusal is not None
            assert refusal.code == ErrorCode.TLS_REQUIRED
            transport.close()


async def received(transport: TlsTransport) -> bytes:
    while True:
        try:
            return transport.recv(100)
        except BlockingIOError:
            await asyncio.sleep(0)


async def test_one_or_two_bytes_do_not_wake_the_loop_again_and_again(policy: ServerTls) -> None:
    with connected() as (ours, theirs):
        loop = asyncio.get_running_loop()
        transport = TlsTransport(ours, "test", policy, handshakes(loop))
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1

        watch = SocketWatch(loop, transport, look, look)
        watch.read(True)
        theirs.sendall(b"\x16\x03")
        for _ in range(100):
            await asyncio.sleep(0)
        assert looks == 0
        watch.close()
        transport.close()


async def test_why_there_was_no_handshake_gets_out_before_the_end(authority: Authority, policy: ServerTls) -> None:
    with connected() as (ours, theirs):
        transport = TlsTransport(ours, "test", policy, handshakes(asyncio.get_running_loop()))
        theirs.sendall(b"\x16\x03\x01\x00\x05hello and more that nobody has read" * 10)
        with pytest.raises(HandshakeError):
            await received(transport)
        transport.shut_down()
        alert = theirs.recv(100)
        assert alert[0] == 0x15
        assert theirs.recv(100) == b""
        transport.close()


async def test_no_socket_is_taken_for_one_that_the_kernel_encrypts(authority: Authority, policy: ServerTls) -> None:
    """What the kernel does not say itself is not so."""
    with connected() as (ours, theirs), client_side(theirs, authority) as client:
        assert not is_encrypted_by_kernel(ours)
        assert PlainTransport(ours).sends_files
        transport = TlsTransport(ours, "test", policy, handshakes(asyncio.get_running_loop()))
        assert not transport.sends_files
        await shaken(transport, client)
        assert transport.sends_files is is_encrypted_by_kernel(transport.sock)
        if not os.path.exists("/proc/net/tls_stat"):
            assert not transport.sends_files
        transport.close()
