"""Authentication and TLS against a real nats-server."""

from __future__ import annotations

import base64
import codecs
import datetime
import hashlib
import ipaddress
import json
import os
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import quote

import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from penstock.base.errors import ConfigError
from penstock.broker.nats.connection import LinkTiming
from penstock.broker.nats.link import ConnectFailed, LinkUp
from penstock.broker.security.nats_credentials import NatsCredentials, TlsFiles
from penstock.cli.terminal.nats_options import login_of, urls_of
from penstock.client.errors import Unavailable
from penstock.client.publish.nats_client import StrictNatsClient
from penstock.client.publish.publishing import Publisher, first_connection
from penstock.ingest.connect import ErrorKind
from penstock.node.step import NatsAnswers
from tests.extent import each_change
from tests.nats_servers import Listener, listening, running_nats


def _key_pair(prefix: int) -> tuple[Any, str]:
    """A new pair and its public key."""
    pair = nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))
    return pair, bytes(pair.public_key).decode().rstrip("=")


def _seed(pair: Any) -> str:
    return bytes(pair.seed).decode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _jwt(issuer: Any, issuer_key: str, subject: str, nats: dict[str, Any]) -> str:
    claims = {"iat": 1_700_000_000, "iss": issuer_key, "name": "test", "sub": subject, "nats": {"version": 2, **nats}}
    claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).rstrip(b"=").decode()
    head = _base64(b'{"typ":"JWT","alg":"ed25519-nkey"}')
    body = _base64(json.dumps(claims).encode())
    return f"{head}.{body}.{_base64(issuer.sign(f'{head}.{body}'.encode()))}"


async def _hears_itself(listener: Listener) -> None:
    listener.link.subscribe(1, "a")
    listener.link.answer([NatsAnswers(1, b"PUB a 2\r\nhi\r\n")])
    await listener.link.wait_barrier(5000)
    assert listener.values(1) == [b"hi"]


async def _refusal(url: str, **options: Any) -> ConnectFailed:
    async with listening(url, wait_up=False, **options) as listener:
        failed = await listener.event(ConnectFailed)
        assert not [event for event in listener.events if isinstance(event, LinkUp)]
        return failed


async def test_user_and_password(tmp_path: Path) -> None:
    async with running_nats(tmp_path, 'authorization { user: ann, password: "p@ss" }') as server:
        at = f"127.0.0.1:{server.port}"
        async with listening(f"nats://ann:p%40ss@{at}") as listener:
            await _hears_itself(listener)
        async with listening(at, credentials=NatsCredentials(user="ann", password="p@ss")) as listener:
            await _hears_itself(listener)
        for url in (f"nats://ann:hidden@{at}", f"nats://hidden@{at}", f"nats://{at}"):
            failed = await _refusal(url)
            assert failed.kind is ErrorKind.AUTHORIZATION
            assert "refuses the credentials" in failed.reason
            assert "hidden" not in f"{failed}"


async def test_token(tmp_path: Path) -> None:
    async with running_nats(tmp_path, 'authorization { token: "t0ken" }') as server:
        at = f"127.0.0.1:{server.port}"
        async with listening(f"nats://t0ken@{at}") as listener:
            await _hears_itself(listener)
        async with listening(at, credentials=NatsCredentials(token="t0ken")) as listener:
            await _hears_itself(listener)


async def test_nkey(tmp_path: Path) -> None:
    user, user_key = _key_pair(nkeys.PREFIX_BYTE_USER)
    other, _ = _key_pair(nkeys.PREFIX_BYTE_USER)
    (tmp_path / "user.nk").write_text(_seed(user))
    (tmp_path / "other.nk").write_text(_seed(other))
    async with running_nats(tmp_path, f"authorization {{ users: [ {{ nkey: {user_key} }} ] }}") as server:
        async with listening(server.url, credentials=NatsCredentials(nkey_file=tmp_path / "user.nk")) as listener:
            await _hears_itself(listener)
        failed = await _refusal(server.url, credentials=NatsCredentials(nkey_file=tmp_path / "other.nk"))
        assert failed.kind is ErrorKind.AUTHORIZATION


def operator_mode(tmp_path: Path) -> tuple[str, Path]:
    """The config of a nats-server with an operator's account, and the credentials file of a user of it."""
    operator, operator_key = _key_pair(nkeys.PREFIX_BYTE_OPERATOR)
    account, account_key = _key_pair(nkeys.PREFIX_BYTE_ACCOUNT)
    user, user_key = _key_pair(nkeys.PREFIX_BYTE_USER)
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    limits = {**unlimited, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    operator_jwt = _jwt(operator, operator_key, operator_key, {"type": "operator"})
    account_jwt = _jwt(operator, operator_key, account_key, {"type": "account", "limits": limits})
    user_jwt = _jwt(account, account_key, user_key, {"type": "user", "pub": {}, "sub": {}, **unlimited})
    creds = tmp_path / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{_seed(user)}\n------END USER NKEY SEED------\n"
    )
    config = f'operator: "{operator_jwt}"\nresolver: MEMORY\nresolver_preload: {{ {account_key}: "{account_jwt}" }}\n'
    return config, creds


async def test_credentials_file(tmp_path: Path) -> None:
    config, creds = operator_mode(tmp_path)
    async with running_nats(tmp_path, config) as server:
        async with listening(server.url, credentials=NatsCredentials(creds_file=creds)) as listener:
            await _hears_itself(listener)
        assert (await _refusal(server.url)).kind is ErrorKind.AUTHORIZATION
        windows = tmp_path / "windows.creds"
        windows.write_bytes(codecs.BOM_UTF8 + creds.read_bytes().replace(b"\n", b"\r\n"))
        async with listening(server.url, credentials=NatsCredentials(creds_file=windows)) as listener:
            await _hears_itself(listener)
        for file in (creds, windows):
            await _publishes(server.url, user_credentials=str(file))
        with pytest.raises(Unavailable, match="asks for a login"):
            await _publishes(server.url)


async def _publishes(*urls: str, **options: Any) -> None:
    """As the client does, and each command that speaks NATS."""
    connection = StrictNatsClient()
    try:
        await first_connection(connection, urls, error_cb=None, allow_reconnect=False, **options)
        await connection.publish("a", b"hi")
        await connection.flush()
    finally:
        await connection.close()


@pytest.mark.parametrize("password", ["p@ss", "p#s", "p/s", "p?s", "p,s", "p+s", "100%", "pass word", "paß", "p%40s"])
async def test_a_password_in_a_url_means_the_same_to_all(tmp_path: Path, password: str) -> None:
    login = f"authorization {{ user: ann, password: {json.dumps(password, ensure_ascii=False)} }}"
    async with running_nats(tmp_path, login) as server:
        url = f"nats://ann:{quote(password, safe='')}@127.0.0.1:{server.port}"
        async with listening(url) as listener:
            await _hears_itself(listener)
        await _publishes(url)
        await _publishes(*urls_of(f"{url},{url}") or ())
        (tmp_path / "login").write_text(f"ann:{password}\n", encoding="utf-8")
        (tmp_path / "login").chmod(0o600)
        await _publishes(server.url, **login_of(tmp_path / "login"))
        with pytest.raises(Unavailable, match="asks for a login") as refused:
            await _publishes(url.replace("ann", "bob"))
        assert password not in str(refused.value)


async def test_nkeys_are_read_from_files_of_windows(tmp_path: Path) -> None:
    user, user_key = _key_pair(nkeys.PREFIX_BYTE_USER)
    (tmp_path / "user.nk").write_bytes(codecs.BOM_UTF8 + f"{_seed(user)}\r\n".encode())
    (tmp_path / "user.nk").chmod(0o600)
    async with running_nats(tmp_path, f"authorization {{ users: [ {{ nkey: {user_key} }} ] }}") as server:
        async with listening(server.url, credentials=NatsCredentials(nkey_file=tmp_path / "user.nk")) as listener:
            await _hears_itself(listener)
        await _publishes(server.url, **login_of(tmp_path / "user.nk"))


def test_mistakes_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        Listener(
            "nats://localhost",
            credentials=NatsCredentials(user="u", creds_file=tmp_path / "none.creds"),
            tls=TlsFiles(ca_file=tmp_path / "none.pem"),
        )
    assert len(raised.value.mistakes) == 4


class Certificates:
    """A certificate authority with a server's and a client's certificate, as PEM files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        self.ca = self._write("ca", self._key, self._certificate(self._name, self._key, ca=True))
        self.server = self.issue("server")
        self.client = self.issue("client")

    def issue(self, name: str) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return self._write(name, key, self._certificate(subject, key, ca=False))

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        day = datetime.timedelta(days=1)
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - day)
        builder = builder.not_valid_after(now + day).add_extension(x509.BasicConstraints(ca, None), critical=True)
        return builder.add_extension(names, critical=False).sign(self._key, hashes.SHA256())

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> Path:
        pem = serialization.Encoding.PEM
        plain = serialization.NoEncryption()
        key_pem = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
        (self._folder / f"{name}.key").write_bytes(key_pem)
        file = self._folder / f"{name}.pem"
        file.write_bytes(certificate.public_bytes(pem))
        return file

    def config(self, more: str = "") -> str:
        return f'tls {{ cert_file: "{self.server}", key_file: "{self.server.with_suffix(".key")}", {more} }}'


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


async def test_tls(tmp_path: Path, certificates: Certificates) -> None:
    async with running_nats(tmp_path, certificates.config()) as server:
        for scheme in ("nats", "tls"):
            url = f"{scheme}://127.0.0.1:{server.port}"
            async with listening(url, tls=TlsFiles(ca_file=certificates.ca)) as listener:
                await _hears_itself(listener)
            failed = await _refusal(url)
            assert "is not trusted" in failed.reason
            assert "CA file" in failed.reason


async def test_tls_with_a_client_certificate(tmp_path: Path, certificates: Certificates) -> None:
    config = certificates.config(f'ca_file: "{certificates.ca}", verify: true')
    async with running_nats(tmp_path, config) as server:
        url = f"tls://127.0.0.1:{server.port}"
        files = TlsFiles(certificates.ca, certificates.client, certificates.client.with_suffix(".key"))
        async with listening(url, tls=files) as listener:
            await _hears_itself(listener)
        failed = await _refusal(url, tls=TlsFiles(ca_file=certificates.ca))
        assert "certificate" in failed.reason.lower()


async def test_tls_before_info(tmp_path: Path, certificates: Certificates) -> None:
    async with running_nats(tmp_path, certificates.config("handshake_first: true")) as server:
        url = f"tls://127.0.0.1:{server.port}"
        timing = LinkTiming(reconnect_ms_min=10, reconnect_ms_max=50, tls_first_ms=100)
        async with listening(url, tls=TlsFiles(ca_file=certificates.ca), timing=timing) as listener:
            await _hears_itself(listener)
            await server.kill()
            await server.start()
            await listener.link.wait_barrier(10_000)
            assert sum(isinstance(event, LinkUp) for event in listener.events) == 2


@each_change
async def test_what_waits_for_info_of_a_server_that_begins_with_tls_says_what_to_write(
    tmp_path: Path, certificates: Certificates
) -> None:
    said = "if it speaks TLS first (handshake_first: true), write tls://"
    async with running_nats(tmp_path, certificates.config("handshake_first: true, timeout: 0.2")) as server:
        url = f"nats://127.0.0.1:{server.port}"
        failed = await _refusal(url)
        assert f"it closed the connection before it said anything; {said}" in failed.reason
        publisher = Publisher([url], "test", {"reconnect_time_wait": 0.05})
        with pytest.raises(Unavailable) as refused:
            await publisher.publish(publisher.future(), "a", b"v", None, timeout_s=1.0)
        advice = "if it speaks TLS first (handshake_first: true), have it wait for that (handshake_first: auto)"
        assert f"NATS at {url} closed the connection before it said anything; {advice}" in str(refused.value)
        await publisher.close()


@pytest.mark.parametrize("handshake_first", ["auto", "false"])
async def test_clients_connect_where_the_server_waits_for_either(
    tmp_path: Path, certificates: Certificates, handshake_first: str
) -> None:
    trusted = ssl.create_default_context(cafile=certificates.ca)
    async with running_nats(tmp_path, certificates.config(f"handshake_first: {handshake_first}")) as server:
        connection = StrictNatsClient()
        options: dict[str, Any] = {"tls": trusted, "reconnect_time_wait": 0.05, "max_reconnect_attempts": -1}
        await first_connection(connection, [f"tls://127.0.0.1:{server.port}"], error_cb=None, **options)
        await connection.flush()
        await connection.close()


async def test_no_credentials_are_sent_where_tls_is_missing(tmp_path: Path, certificates: Certificates) -> None:
    async with running_nats(tmp_path) as server:
        for scheme, tls in (("tls", TlsFiles()), ("nats", TlsFiles(ca_file=certificates.ca))):
            failed = await _refusal(f"{scheme}://u:p@127.0.0.1:{server.port}", tls=tls)
            assert failed.kind is ErrorKind.TLS_REQUIRED


async def test_large_messages_over_tls(tmp_path: Path, certificates: Certificates) -> None:
    async with (
        running_nats(tmp_path, certificates.config() + "\nmax_payload: 8MB\n") as server,
        listening(server.url, tls=TlsFiles(ca_file=certificates.ca)) as listener,
    ):
        listener.link.subscribe(1, "a")
        value = os.urandom(5_000_000)
        listener.link.answer([NatsAnswers(1, b"PUB a %d\r\n%b\r\nPUB a 0\r\n\r\n" % (len(value), value))])
        await listener.link.wait_barrier(10_000)
        assert listener.values(1) == [value, b""]
