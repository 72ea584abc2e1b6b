"""Clients and a real broker through TLS: what goes over the wire, who is let in, and what happens to whoever is not."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

import penstock
from penstock import Credentials, aio
from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.client.errors import Unavailable
from penstock.client.link.tls import TlsOptions
from penstock.messages import MetadataRequest
from penstock.wire import FrameDecoder, encode_request
from tests.broker_process import BrokerProcess, eventually, running_broker
from tests.certificates import Authority, Pair
from tests.extent import each_change, needs_time
from tests.integration.between import Between
from tests.integration.raw_client import HELLO
from tests.metrics_page import get, page_of, url_of

SECRET = b"the text that nobody on the way may read " * 4
_CLIENT_ONLY = (ExtendedKeyUsageOID.CLIENT_AUTH,)
_SERVER_ONLY = (ExtendedKeyUsageOID.SERVER_AUTH,)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another authority, which nobody trusts unless a test says so."""
    return Authority(tmp_path_factory.mktemp("others"), "other-ca")


def with_pair(pair: Pair, *arguments: str) -> tuple[str, ...]:
    return ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), *arguments)


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data", *with_pair(authority.issue("broker"))) as running:
        yield running


@pytest.fixture(scope="module")
def strict(
    authority: Authority, others: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokerProcess]:
    """One that asks clients for a certificate of `others`, and brokers for one of `authority`."""
    folder = tmp_path_factory.mktemp("strict") / "data"
    options = ("--tls-client-ca", str(others.ca), "--tls-ca", str(authority.ca))
    with running_broker(folder, *with_pair(authority.issue("strict"), *options)) as running:
        yield running


class Tap(Between):
    """Keeps all bytes that pass, both ways."""

    def __init__(self, address: str) -> None:
        super().__init__(int(address.rpartition(":")[2]))
        self.passed = bytearray()

    async def there(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(self.piece_bytes):
            self.passed += data
            writer.write(data)
            await writer.drain()


def table(values: list[bytes], subject: str) -> pa.Table:
    return pa.table({"subject": pa.array([subject] * len(values)), "value": pa.array(values, pa.binary())})


@each_change
@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_nothing_that_passes_can_be_read(
    authority: Authority, broker: BrokerProcess, tmp_path: Path, is_encrypted: bool
) -> None:
    """Not what is appended, nor what comes from a file, whether the kernel encrypts that or the broker."""
    with ExitStack() as stack:
        if not is_encrypted:  # so it is seen that the tap would see it
            broker = stack.enter_context(running_broker(tmp_path / "plain"))
        tls = TlsOptions(ca=authority.ca) if is_encrypted else None
        async with Tap(broker.client_address) as tap, aio.connect(tap.address, tls=tls) as client:
            # The link of a client goes where it was told; other brokers there are none.
            await client.create_stream("secrets", "secrets.>")
            await client.append("secrets", table([SECRET] * 2_000, "secrets.a"))
            read = [batch async for batch in client.read("secrets")]
        assert sum(batch.num_rows for batch in read) == 2_000
        assert all(value.as_py() == SECRET for batch in read for value in batch.column("value"))
    assert len(tap.passed) > 2 * 2_000 * len(SECRET)
    assert (SECRET in tap.passed) is not is_encrypted
    assert (b"secrets.a" in tap.passed) is not is_encrypted


def test_the_blocking_client_and_the_address_alone_will_do(
    authority: Authority, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = f"tls://{broker.client_address}"
    with penstock.connect(f"{server}?ca={authority.ca}") as client:
        expires_us = client.status().tls_expires_us
    assert expires_us is not None
    certificate = x509.load_pem_x509_certificate((authority.ca.parent / "broker.pem").read_bytes())
    assert datetime.fromtimestamp(expires_us / 1e6, UTC) == certificate.not_valid_after_utc
    monkeypatch.setenv("PENSTOCK_TLS_CA", str(authority.ca))
    for address in (server, broker.client_address):
        with penstock.connect(address) as client:
            assert client.status().connections >= 1


@each_change
async def test_who_has_to_log_in_does_so_through_tls(authority: Authority, tmp_path: Path) -> None:
    password = "a long password that is not to be seen"
    (tmp_path / "password").write_text(password)
    options = ("--auth", "--admin-password-file", str(tmp_path / "password"))
    with running_broker(tmp_path / "data", *with_pair(authority.issue("guarded"), *options)) as guarded:
        async with Tap(guarded.client_address) as tap:
            tls = TlsOptions(ca=authority.ca)
            async with aio.connect(tap.address, tls=tls, credentials=Credentials.password("admin", password)) as client:
                await client.create_stream("orders", "orders.>")
            with pytest.raises(RemoteError) as raised:
                await aio.connect(tap.address, tls=tls, credentials=Credentials.password("admin", "wrong"))
            assert raised.value.code == ErrorCode.UNAUTHENTICATED
        assert b"admin" not in tap.passed


# Who is not let in, and what is said


def test_a_plain_client_hears_that_the_broker_speaks_tls(broker: BrokerProcess) -> None:
    with pytest.raises(RemoteError, match="this broker speaks TLS: connect with tls=True") as raised:
        penstock.connect(broker.client_address)
    assert raised.value.code == ErrorCode.TLS_REQUIRED


@each_change
def test_a_client_with_tls_hears_that_the_broker_has_none(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as plain:
        with pytest.raises(Unavailable, match=r"what answers there speaks no TLS; connect without"):
            penstock.connect(plain.client_address, tls=True)


def test_an_unknown_authority_is_named(others: Authority, broker: BrokerProcess) -> None:
    for tls in (TlsOptions(ca=others.ca), True):
        with pytest.raises(Unavailable, match=r"of no authority that is trusted here.*--tls-ca or PENSTOCK_TLS_CA"):
            penstock.connect(broker.client_address, tls=tls)


@needs_time
@pytest.mark.parametrize(
    ("hosts", "days", "usages", "said"),
    [
        (("elsewhere.example",), 30, _SERVER_ONLY, r"is for another name.*127\.0\.0\.1.*tls server_name="),
        (("127.0.0.1",), -1, _SERVER_ONLY, "its certificate has expired"),
        (("127.0.0.1",), 30, _CLIENT_ONLY, "its certificate is not for servers"),
    ],
)
def test_a_certificate_of_a_broker_that_is_not_good_is_told(
    tmp_path: Path, hosts: tuple[str, ...], days: float, usages: tuple[x509.ObjectIdentifier, ...], said: str
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("broker", hosts, days=days, usages=usages)
    with running_broker(tmp_path / "data", *with_pair(pair)) as running:
        with pytest.raises(Unavailable, match=said):
            penstock.connect(running.client_address, tls=TlsOptions(ca=authority.ca))
        if hosts[0] == "elsewhere.example":
            tls = TlsOptions(ca=authority.ca, server_name=hosts[0])
            with penstock.connect(running.client_address, tls=tls) as client:
                assert client.status().tls_expires_us
        if days < 0:
            running.logged(r"a certificate in \S*broker\.pem ended on")


@each_change
def test_who_needs_a_certificate_hears_it(authority: Authority, others: Authority, strict: BrokerProcess) -> None:
    at = strict.client_address
    with pytest.raises(RemoteError, match=r"asks clients for a certificate: give one") as raised:
        penstock.connect(at, tls=TlsOptions(ca=authority.ca))
    assert raised.value.code == ErrorCode.CERTIFICATE_REFUSED
    client = others.issue("client", (), usages=_CLIENT_ONLY)
    with penstock.connect(at, tls=TlsOptions(ca=authority.ca, cert=client.cert, key=client.key)) as connected:
        assert connected.status().broker_id == 1
    # A broker's certificate makes nobody a client, whatever he is called.
    peer = authority.issue("peer")
    for name in ("test", "penstock broker 7"):
        with pytest.raises(RemoteError, match=r"'peer' is not of the authority that it trusts for clients"):
            with penstock.connect(
                at, name=name, tls=TlsOptions(ca=authority.ca, cert=peer.cert, key=peer.key)
            ) as connected:
                connected.status()


@pytest.mark.parametrize(
    ("days", "usages", "of_another", "said"),
    [
        (30, _CLIENT_ONLY, True, "it refuses our certificate: its authority is not trusted there"),
        (-1, _CLIENT_ONLY, False, "it refuses our certificate: it has expired"),
        (30, _SERVER_ONLY, False, "it refuses our certificate: it is not for this purpose"),
    ],
)
def test_a_certificate_of_a_client_that_is_not_good_is_told(
    authority: Authority,
    others: Authority,
    strict: BrokerProcess,
    tmp_path: Path,
    days: float,
    usages: tuple[x509.ObjectIdentifier, ...],
    of_another: bool,
    said: str,
) -> None:
    issuer = Authority(tmp_path, "unknown") if of_another else others
    pair = issuer.issue("bad-client", (), days=days, usages=usages)
    with pytest.raises(Unavailable, match=said):
        penstock.connect(strict.client_address, tls=TlsOptions(ca=authority.ca, cert=pair.cert, key=pair.key))


def test_files_that_cannot_be_used_are_told_before_anything_is_dialled(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("pair")
    for tls, said in (
        (TlsOptions(ca=tmp_path / "none.pem"), r"cannot use \S*none\.pem for TLS: No such file"),
        (TlsOptions(cert=pair.cert, key=authority.issue("another").key), "for TLS: the key is not that of the cert"),
        (TlsOptions(key=pair.key), "a key of TLS needs its certificate"),
    ):
        with pytest.raises(ValueError, match=said):
            penstock.connect("127.0.0.1:1", tls=tls)


# Hostile and slow


def client_hello(authority: Authority) -> bytes:
    """What a client sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=authority.ca)
    side = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return outgoing.read()


def dialled(broker: BrokerProcess) -> socket.socket:
    host, _, port = broker.client_address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def encrypted(broker: BrokerProcess, authority: Authority) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=authority.ca)
    return context.wrap_socket(dialled(broker), server_hostname="127.0.0.1")


@needs_time
async def test_thousands_of_handshakes_that_are_left_keep_nobody_out(
    authority: Authority, broker: BrokerProcess
) -> None:
    hello = client_hello(authority)
    openings = (b"", hello[:1], hello[:40], hello, b"\x16\x03\x01\xff\xff" + b"x" * 100)
    tls = TlsOptions(ca=authority.ca)
    files_before = broker.open_files()
    async with aio.connect(broker.client_address, tls=tls) as there:
        with ExitStack() as stack:
            left = [stack.enter_context(closing(dialled(broker))) for _ in range(limits.TLS_HANDSHAKES_MAX + 500)]
            for number, one in enumerate(left):
                one.sendall(openings[number % len(openings)] if number % 2 else hello)
            started_s = time.monotonic()
            async with aio.connect(broker.client_address, tls=tls) as client:
                await client.status()
            await there.status(timeout=5)
            assert time.monotonic() - started_s < 10

            async def gone() -> bool:
                return broker.open_files() <= files_before + 20

            await eventually(gone, "those who did not finish are closed")
        assert (await there.status()).connections < 20


def test_garbage_in_and_behind_the_handshake_ends_one_connection(authority: Authority, broker: BrokerProcess) -> None:
    with penstock.connect(broker.client_address, tls=TlsOptions(ca=authority.ca)) as client:
        for garbage in (b"\xff" * 64, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05hello", b"INFO {}\r\n"):
            with dialled(broker) as plain:
                plain.sendall(garbage)
                plain.shutdown(socket.SHUT_WR)
                while plain.recv(1 << 16):
                    pass
        for garbage in (b"\xff" * 64, b"\x17\x03\x03\x00\x40" + os.urandom(64), b"\x15\x03\x03\x00\x02\x02\x00"):
            with encrypted(broker, authority) as one:
                one.sendall(HELLO)
                assert one.recv(1 << 16)
                with socket.socket(fileno=os.dup(one.fileno())) as raw:  # below TLS
                    raw.settimeout(60)
                    raw.sendall(garbage)
                    with suppress(ConnectionResetError):
                        while raw.recv(1 << 16):
                            pass
        assert client.status().broker_id == 1


def test_whoever_has_said_all_is_answered_and_told_that_it_is_the_end(
    authority: Authority, broker: BrokerProcess
) -> None:
    """close_notify one way does not end the other; and the end of the answers is one, not just of the connection."""
    with encrypted(broker, authority) as one:
        one.sendall(HELLO)
        one.settimeout(0.0)
        with pytest.raises(ssl.SSLWantReadError):
            one.unwrap()  # close_notify is sent; that of the broker is awaited
        one.settimeout(60)
        answer = b""
        with suppress(ssl.SSLZeroReturnError):  # the end without close_notify would be another error
            while True:
                answer += one.recv(1 << 16)
        assert b"broker_version" in answer


def test_frames_in_pieces_of_records_and_many_in_one_record(authority: Authority, broker: BrokerProcess) -> None:
    """What TLS holds of a record is read though the socket has nothing more."""
    with encrypted(broker, authority) as one:
        for byte in HELLO:
            one.send(bytes((byte,)))
        decoder = FrameDecoder(limits.RESPONSE_BYTES_MAX)
        decoder.receive(one.recv(1 << 16))
        assert decoder.next_frame() is not None
        ids = range(2, 200)
        asked = b"".join(encode_request(MetadataRequest(names=(f"{number:a>200}",)), number) for number in ids)
        assert len(asked) > 2 * limits.UNRESERVED_READ_BYTES
        one.sendall(asked)
        answered: set[int] = set()
        while answered != set(ids):
            decoder.receive(one.recv(1 << 16))
            while (frame := decoder.next_frame()) is not None:
                answered.add(frame.correlation_id)


# New certificates


def serial_of(broker: BrokerProcess, authority: Authority) -> int:
    with encrypted(broker, authority) as one:
        der = one.getpeercert(binary_form=True)
    assert der
    return x509.load_der_x509_certificate(der).serial_number


def serial_in(pair: Pair) -> int:
    return x509.load_pem_x509_certificate(pair.cert.read_bytes()).serial_number


@needs_time
async def test_new_certificates_are_taken_while_clients_come_and_go(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("broker")
    with running_broker(tmp_path / "data", *with_pair(pair)) as running:
        stopping = asyncio.Event()
        tls = TlsOptions(ca=authority.ca)

        async def come_and_go() -> int:
            came = 0
            while not stopping.is_set():
                async with aio.connect(running.client_address, tls=tls) as client:
                    await client.status()
                came += 1
            return came

        async with aio.connect(running.client_address, tls=tls) as stays:
            before_us = (await stays.status()).tls_expires_us
            busy = [asyncio.create_task(come_and_go()) for _ in range(3)]
            assert await asyncio.to_thread(serial_of, running, authority) == serial_in(pair)

            authority.issue("broker", days=60)  # as a file that changes
            await asyncio.to_thread(running.logged, "new certificates are in use")
            assert await asyncio.to_thread(serial_of, running, authority) == serial_in(pair)
            after_us = (await stays.status()).tls_expires_us
            assert before_us is not None
            assert after_us is not None
            assert after_us > before_us

            good, good_serial = pair.key.read_bytes(), serial_in(pair)
            pair.key.write_bytes(authority.issue("another").key.read_bytes())
            running.signal(signal.SIGHUP)
            await asyncio.to_thread(
                running.logged, "the key is not that of the certificate; what was read before stays"
            )
            assert await asyncio.to_thread(serial_of, running, authority) == good_serial
            pair.key.write_bytes(good)

            lines = len(running.stderr) if running.stderr else 0
            authority.issue("broker", days=13)
            running.signal(signal.SIGHUP)
            await asyncio.to_thread(running.logged, r"a certificate in \S*broker\.pem ends on", after=lines)
            assert await asyncio.to_thread(serial_of, running, authority) == serial_in(pair)
            stopping.set()
            assert min(await asyncio.gather(*busy)) > 3
            assert (await stays.status()).broker_id == 1  # its connection has outlived them all


# The HTTP port


@each_change
async def test_metrics_are_shown_through_tls_to_those_who_have_no_certificate(
    authority: Authority, others: Authority, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("s3cret")
    options = ("--http-tls", "--http", "127.0.0.1:0", "--http-token-file", str(tmp_path / "token"))
    strict = ("--tls-client-ca", str(others.ca), "--tls-ca", str(authority.ca))
    pair = authority.issue("shown")
    with running_broker(tmp_path / "data", *with_pair(pair, *options, *strict)) as running:
        url = url_of(running)
        assert url.startswith("https://")
        trusted = ssl.create_default_context(cafile=authority.ca)
        assert (await get(f"{url}/readyz", trusted=trusted)).text == "ready\n"
        assert (await get(f"{url}/metrics", trusted=trusted)).status == 401
        assert (await page_of(url, token="s3cret", trusted=trusted)).value("penstock_ready") == 1
        with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
            await get(f"{url}/readyz", trusted=ssl.create_default_context(cafile=others.ca))
        with pytest.raises(OSError, match=r"[Rr]emote|[Rr]eset"):
            await get(f"{url.replace('https', 'http')}/readyz")

        authority.issue("shown")
        running.signal(signal.SIGHUP)
        await asyncio.to_thread(running.logged, "new certificates are in use")
        host, _, port = url.removeprefix("https://").rpartition(":")
        shown = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        assert x509.load_pem_x509_certificate(shown.encode()).serial_number == serial_in(pair)
        assert (await get(f"{url}/healthz", trusted=trusted)).text == "ok\n"
        assert "speaks no TLS" not in running.said
        assert running.stop() == 0
        assert "mistake" not in running.said


@each_change
def test_a_token_that_travels_plain_beside_tls_is_told(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    options = ("--http", "0.0.0.0:0", "--http-token-file", str(tmp_path / "token"))
    with running_broker(tmp_path / "data", *with_pair(authority.issue("plain"), *options)) as running:
        assert "the HTTP port speaks no TLS, so its pages and its token can be read on the way" in running.said


# Much


def fingerprint(values: pa.ChunkedArray) -> str:
    found = hashlib.sha256()
    for value in values:
        found.update(value.as_buffer())
    return found.hexdigest()


@needs_time
async def test_hundreds_of_megabytes_come_byte_for_byte_also_from_the_disk(
    authority: Authority, broker: BrokerProcess
) -> None:
    rows, size, pieces = 64, 65_536, 60  # 240 MiB
    sent = hashlib.sha256()
    async with aio.connect(broker.client_address, tls=TlsOptions(ca=authority.ca), timeout=60) as client:
        await client.create_stream("large", "large.>", durability="os")
        for _ in range(pieces):
            values = [os.urandom(size) for _ in range(rows)]
            for value in values:
                sent.update(value)
            await client.append("large", table(values, "large.a"), timeout=60)
        for is_cold in (False, True):
            if is_cold:
                for file in broker.data_dir.rglob("*large/0/*.arrows"):
                    with file.open("rb") as opened:
                        os.fsync(opened.fileno())
                        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            found = hashlib.sha256()
            read_rows = 0
            async for batch in client.read("large", timeout=60):
                read_rows += batch.num_rows
                for value in batch.column("value"):
                    found.update(value.as_buffer())
            assert read_rows == rows * pieces
            assert found.hexdigest() == sent.hexdigest()
