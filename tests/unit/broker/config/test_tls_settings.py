"""Which certificates a broker takes for its own, and whom it would check with them; what is wrong with the others."""

from __future__ import annotations

import base64
import codecs
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from penstock.base import limits
from penstock.base.errors import ConfigError
from penstock.broker.config.config import BrokerConfig, load
from penstock.broker.config.tls_settings import BrokerTls
from penstock.broker.security.certificates import certificates_in, validity_of
from penstock.broker.transport.tls import ServerTls
from penstock.broker.transport.transport import PeerCertificate
from tests.certificates import Authority, Pair


def loaded(environment: Mapping[str, str] | None = None, **flags: object) -> BrokerConfig:
    return load(environment=environment or {}, flags={name: str(value) for name, value in flags.items()})


def mistakes(environment: Mapping[str, str] | None = None, **flags: object) -> str:
    with pytest.raises(ConfigError) as raised:
        loaded(environment, **flags)
    return "\n".join(raised.value.mistakes)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize("year", [1999, 2026, 2049, 2050, 2120])
def test_the_end_of_a_certificate_is_read_as_it_is(year: int) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    end = datetime(year, 11, 25, 23, 59, 58, tzinfo=UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "n" * 60)] * 3)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(2**150).not_valid_before(end - timedelta(days=9)).not_valid_after(end)
    der = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    assert validity_of(der).end_us == int(end.timestamp()) * 1_000_000
    assert validity_of(der).begin_us == int((end - timedelta(days=9)).timestamp()) * 1_000_000
    for length in range(0, len(der), 7):
        with pytest.raises(ValueError, match="certificate"):
            validity_of(der[:length])


def test_a_certificate_alone_will_do(authority: Authority) -> None:
    pair = authority.issue("broker")
    config = loaded(tls_cert=pair.cert, tls_key=pair.key)
    assert config.tls
    assert config.tls.wanted_of_clients == "off"
    assert config.tls.load().dialling is None
    assert not loaded().tls
    ca = loaded(tls_cert=pair.cert, tls_key=pair.key, tls_client_ca=authority.ca).tls
    assert ca.wanted_of_clients == "required"


def test_what_does_not_go_together_is_told_with_the_place_that_said_it(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("broker")
    both = {"tls_cert": pair.cert, "tls_key": pair.key}
    assert mistakes(http_tls="yes") == "--http-tls: there is no TLS without a certificate; set tls_cert and tls_key"
    assert loaded(**both, http_tls="yes").http_tls
    assert not loaded(**both).http_tls
    cluster = {"id": 1, "cluster": "1@127.0.0.1:1,2@127.0.0.1:2", "nats": "nats://127.0.0.1:3"}
    assert "no TLS without a certificate" in mistakes(tls_ca=authority.ca)
    assert "(see --tls-ca)" in mistakes(tls_ca=authority.ca)
    assert "tls_client_auth = required needs tls_client_ca" in mistakes(**both, tls_client_auth="required")
    assert "is not one of off, optional, required" in mistakes(**both, tls_client_auth="perhaps")
    assert "tls_peer_names needs tls_ca" in mistakes(**both, tls_peer_names="a")
    any_host = {"tls_ca": authority.ca, "tls_ignore_hosts": "yes"}
    assert "whatever tls_peer_names says; set one of the two" in mistakes(**both, **any_host, tls_peer_names="a")
    assert loaded(**both, **any_host).tls.ignore_hosts
    assert "check each other's certificates; set tls_ca" in mistakes(**both, **cluster)
    assert "check each other's certificates; set tls_ca" in mistakes(**both, brokers=3)
    assert loaded(**both, **cluster, tls_ca=authority.ca).tls.ca_file == authority.ca
    of_all = {**both, "tls_ca": authority.ca, "tls_client_ca": authority.ca}
    assert "any client could say that it is a broker" in mistakes(**of_all)
    assert loaded(**of_all, tls_peer_names="a,b").tls.peer_names == ("a", "b")


def test_files_that_cannot_be_used_are_told(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("broker"), authority.issue("other")
    (tmp_path / "empty.pem").write_text("nothing")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"passphrase")
    locked = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret)
    (tmp_path / "locked.key").write_bytes(locked)
    assert "none.pem for TLS: No such file" in mistakes(tls_cert=tmp_path / "none.pem", tls_key=pair.key)
    assert "the key is not that of the certificate" in mistakes(tls_cert=pair.cert, tls_key=other.key)
    said = mistakes(tls_cert=pair.cert)
    text = "for TLS: it holds no private key: name that of the certificate (tls_key, --tls-key)"
    assert f"cannot use {pair.cert} {text}" in said
    half = tmp_path / "half.key"
    half.write_bytes(pair.key.read_bytes()[:120])
    assert f"with {half} for TLS: {half} breaks off in the private key" in mistakes(tls_cert=pair.cert, tls_key=half)
    lines = pair.key.read_bytes().splitlines(keepends=True)
    half.write_bytes(b"".join(lines[:1] + lines[2:]))
    assert f"the private key in {half} is damaged" in mistakes(tls_cert=pair.cert, tls_key=half)
    said = mistakes(tls_cert=pair.cert, tls_key=tmp_path / "empty.pem")
    assert f"{tmp_path / 'empty.pem'} holds no private key (PEM)" in said
    said = mistakes(tls_cert=pair.cert, tls_key=tmp_path / "none.key")
    assert f"{tmp_path / 'none.key'}: No such file or directory" in said
    (tmp_path / "both.pem").write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    assert loaded(tls_cert=tmp_path / "both.pem").tls
    assert "the key has a passphrase" in mistakes(tls_cert=pair.cert, tls_key=tmp_path / "locked.key")
    assert "there is no certificate (PEM) in it" in mistakes(tls_cert=tmp_path / "empty.pem", tls_key=pair.key)
    said = mistakes(tls_cert=pair.cert, tls_key=pair.key, tls_ca=tmp_path / "empty.pem")
    assert f"cannot use {tmp_path / 'empty.pem'} for TLS" in said


def trusted(cert: bytes) -> bytes:
    """As `openssl x509 -trustout` writes it: with what it is trusted for behind the certificate."""
    more = bytes.fromhex("300c300a06082b06010505070301")  # SEQUENCE { SEQUENCE { serverAuth } }
    body = base64.encodebytes(ssl.PEM_cert_to_DER_cert(cert.decode()) + more)
    return b"-----BEGIN TRUSTED CERTIFICATE-----\n" + body + b"-----END TRUSTED CERTIFICATE-----\n"


def test_what_openssl_loads_is_loaded(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("broker"), Authority(tmp_path / "other")
    ca, second = authority.ca.read_bytes(), other.ca.read_bytes()
    file, expected = tmp_path / "variant.pem", certificates_in(authority.ca)
    for content, count in (
        (trusted(ca), 1),
        (ca.replace(b" CERTIFICATE", b" X509 CERTIFICATE"), 1),
        (ca.replace(b"\n", b"\r\n"), 1),
        (b"subject=CN = test\n\n" + ca + b"\nand behind it\n" + second, 2),
        (codecs.BOM_UTF8 + ca, 1),
    ):
        file.write_bytes(content)
        assert certificates_in(file)[0] == expected[0]
        assert len(certificates_in(file)) == count
        assert loaded(tls_cert=pair.cert, tls_key=pair.key, tls_ca=file).tls


def test_files_put_together_without_a_line_end_are_told(authority: Authority, tmp_path: Path) -> None:
    pair = authority.issue("broker")
    file = tmp_path / "joined.pem"
    file.write_bytes(authority.ca.read_bytes().rstrip() + authority.ca.read_bytes())
    said = "a line end is missing between two of its parts: END and BEGIN are on one line"
    assert f"cannot use {file} for TLS: {said}" in mistakes(tls_cert=pair.cert, tls_key=pair.key, tls_ca=file)
    file.write_bytes(pair.cert.read_bytes().rstrip() + pair.key.read_bytes())
    assert f"cannot use {file} for TLS: {said}" in mistakes(tls_cert=file)


def test_what_clients_of_this_machine_have_in_their_environment_makes_no_broker_speak_tls(authority: Authority) -> None:
    pair = authority.issue("client")
    assert not loaded({"PENSTOCK_TLS_CA": str(authority.ca)}).tls
    assert not loaded({"PENSTOCK_TLS_CA": str(authority.ca), "PENSTOCK_TLS_KEY": str(pair.key)}).tls
    assert loaded({"PENSTOCK_TLS_CERT": str(pair.cert), "PENSTOCK_TLS_KEY": str(pair.key)}).tls


def test_an_end_that_is_near_is_told_once_a_day(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    pair = authority.issue("broker", days=20)
    tls = ServerTls(BrokerTls(cert_file=pair.cert, key_file=pair.key, ca_file=authority.ca))
    assert tls.expires_us == validity_of(certificates_in(pair.cert)[0]).end_us
    day_us, hour_us = 86_400_000_000, 3_600_000_000
    told: list[int] = []
    with caplog.at_level(logging.WARNING, "penstock.tls"):
        for hour in range(22 * 24):
            caplog.clear()
            now_us = tls.expires_us - 20 * day_us + hour * hour_us
            tls.sweep(now_us, hour * limits.TLS_LOOK_MS * 1_000, lambda run, done: done(None))
            if caplog.messages:
                told.append(hour)
                verb = "ended" if hour >= 20 * 24 else "ends"
                assert caplog.messages[0].startswith(f"a certificate in {pair.cert} {verb} on ")
    assert told == list(range(6 * 24, 22 * 24, 24))


def shown(tls: ServerTls, pair: Pair, trusted: Path) -> PeerCertificate | None:
    """What the broker makes of the certificate with which somebody comes, who trusts that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(trusted)
    context.load_cert_chain(pair.cert, pair.key)
    ours, theirs = socket.socketpair()

    def come() -> None:
        with context.wrap_socket(theirs, server_hostname="127.0.0.1") as client:
            client.recv(1)

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come)
        with tls.context().wrap_socket(ours, server_side=True) as server:
            found = tls.certificate_of(server)
            server.send(b"x")
        coming.result()
    return found


def test_the_nearest_authority_says_whose_certificate_it_is(tmp_path: Path) -> None:
    root = Authority(tmp_path, "root")
    of_clients = Authority(tmp_path, "clients", root)
    below = Authority(tmp_path, "below", of_clients)
    broker, client, deep = root.issue("broker"), of_clients.issue("client"), below.issue("deep")
    deep.cert.write_bytes(deep.cert.read_bytes() + below.ca.read_bytes())
    tls = ServerTls(
        BrokerTls(
            cert_file=broker.cert,
            key_file=broker.key,
            ca_file=root.ca,
            client_ca_file=of_clients.ca,
            peer_names=("127.0.0.1",),
        )
    )
    names = ("127.0.0.1", "localhost")
    for pair, name, is_client in ((broker, "broker", False), (client, "client", True), (deep, "deep", True)):
        found = shown(tls, pair, root.ca)
        assert found is not None
        assert (found.subject, sorted(found.names)) == (name, sorted(names))
        assert (found.is_client, found.is_broker) == (is_client, not is_client)


@pytest.mark.parametrize("same_key", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
def test_an_authority_that_has_ended_beside_a_good_one_does_no_harm(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture, same_key: bool, is_first: bool
) -> None:
    ended = (authority if same_key else Authority(tmp_path, "old")).own(days=-1)
    good = authority.ca.read_bytes()
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(ended + good if is_first else good + ended)
    pair = authority.issue("broker")
    for settings in (
        BrokerTls(pair.cert, pair.key, ca_file=bundle),
        BrokerTls(pair.cert, pair.key, client_ca_file=bundle),
    ):
        tls = ServerTls(settings)
        found = shown(tls, authority.issue("came"), bundle)
        assert found is not None
        assert (found.is_broker, found.is_client) == (settings.ca_file is not None, settings.ca_file is None)
        now_us = int(authority.now.timestamp()) * 1_000_000
        with caplog.at_level(logging.WARNING, "penstock.tls"):
            caplog.clear()
            tls.sweep(now_us, limits.TLS_LOOK_MS * 1_000, lambda run, done: done(None))
        ((level, text),) = [(one.levelname, one.getMessage()) for one in caplog.records]
        assert (level, text.partition(" ended on ")[0]) == ("WARNING", f"an authority in {bundle}")
        (held,) = [one for one in tls.held if one.file == bundle]
        assert held.validity.end_us < now_us < held.last_end_us
        caplog.clear()
        tls.sweep(now_us + 366 * 86_400_000_000, 2 * limits.TLS_LOOK_MS * 1_000, lambda run, done: done(None))
        assert f"a certificate in {bundle} ended on " in caplog.text


def test_an_authority_that_is_there_before_its_time_does_no_harm(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(authority.ca.read_bytes() + Authority(tmp_path, "next").own(days=700, begin_days=30))
    pair = authority.issue("broker")
    tls = ServerTls(BrokerTls(pair.cert, pair.key, ca_file=bundle))
    assert shown(tls, authority.issue("came"), bundle) is not None
    with caplog.at_level(logging.WARNING, "penstock.tls"):
        tls.sweep(int(authority.now.timestamp()) * 1_000_000, limits.TLS_LOOK_MS * 1_000, lambda run, done: done(None))
    assert not caplog.messages


def test_of_two_authorities_neither_may_be_below_the_other_unless_brokers_have_names(tmp_path: Path) -> None:
    root, other = Authority(tmp_path, "root"), Authority(tmp_path, "other")
    middle = Authority(tmp_path, "middle", root)
    low = Authority(tmp_path, "low", middle)
    both = tmp_path / "both.pem"
    both.write_bytes(low.ca.read_bytes() + middle.ca.read_bytes())
    pair = root.issue("broker")

    def found(ca: Path, client_ca: Path, *names: str) -> list[str]:
        return BrokerTls(pair.cert, pair.key, ca_file=ca, client_ca_file=client_ca, peer_names=names).mistakes()

    for ca, client_ca in ((root.ca, middle.ca), (middle.ca, root.ca), (root.ca, both), (both, root.ca)):
        assert len(found(ca, client_ca)) == 1
        assert "is below one in the other" in found(ca, client_ca)[0]
        assert not found(ca, client_ca, "broker-1")
    assert not found(root.ca, other.ca)
    assert not found(both, other.ca)


def test_an_authority_that_is_put_below_the_other_while_it_runs_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, other = Authority(tmp_path, "root"), Authority(tmp_path, "other")
    pair, client = root.issue("broker"), other.issue("client")
    tls = ServerTls(BrokerTls(pair.cert, pair.key, ca_file=root.ca, client_ca_file=other.ca))
    kept = other.ca.read_bytes()
    other.ca.write_bytes(Authority(tmp_path, "middle", root).ca.read_bytes())

    def at_once(run: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        run()
        done(None)

    tls.reload(time.time_ns() // 1_000, at_once)
    assert "is below one in the other" in caplog.text
    assert "what was read before stays in use" in caplog.text
    other.ca.write_bytes(kept)
    found = shown(tls, client, root.ca)
    assert found is not None
    assert found.is_client


class Watched:
    """The certificates of a broker, which looks at its files when it is told to, at a time that it is told."""

    def __init__(self, authority: Authority, log: pytest.LogCaptureFixture) -> None:
        pair = authority.issue("broker", days=20)
        self.tls = ServerTls(BrokerTls(cert_file=pair.cert, key_file=pair.key))
        self.now_us = int(authority.now.timestamp()) * 1_000_000
        self._looks = 0
        self._log = log
        self._log.set_level(logging.INFO, "penstock.tls")

    def said(self) -> list[tuple[str, str]]:
        """Level and text of what one look at the files has it say."""
        self._log.clear()
        self._looks += 1

        def in_thread(run: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
            run()
            done(None)

        self.tls.sweep(self.now_us, self._looks * limits.TLS_LOOK_MS * 1_000, in_thread)
        return [(one.levelname, one.getMessage()) for one in self._log.records]


@pytest.fixture(params=[datetime(2024, 2, 27, 23, 59, 59, 999_999, tzinfo=UTC), datetime(2038, 1, 19, tzinfo=UTC)])
def dated(tmp_path: Path, request: pytest.FixtureRequest) -> Authority:
    """An authority of a date of its own: nothing here verifies a certificate at the real time."""
    return Authority(tmp_path, now=request.param)


@pytest.mark.parametrize(("days", "begin_days"), [(-1, -365), (30, 2)])
def test_a_pair_that_nobody_would_take_does_not_take_the_place_of_a_good_one(
    dated: Authority, caplog: pytest.LogCaptureFixture, days: int, begin_days: int
) -> None:
    broker = Watched(dated, caplog)
    good = broker.tls.context(), broker.tls.expires_us
    assert not broker.said()
    pair = dated.issue("broker", days=days, begin_days=begin_days)
    ((level, text),) = broker.said()
    assert level == "WARNING"
    day = f"{dated.now + timedelta(days=days if days < 0 else begin_days):%Y-%m-%d}"
    assert text.startswith(f"the new certificate in {pair.cert} {'ended' if days < 0 else 'begins'} on {day} ")
    assert (broker.tls.context(), broker.tls.expires_us) == good
    assert not broker.said()
    dated.issue("broker", days=90)
    ((level, text),) = broker.said()
    assert (level, text[:28]) == ("INFO", "new certificates are in use;")
    assert broker.tls.expires_us > good[1]


def test_a_pair_that_begins_later_is_taken_when_it_begins(dated: Authority, caplog: pytest.LogCaptureFixture) -> None:
    broker = Watched(dated, caplog)
    good = broker.tls.context()
    dated.issue("broker", days=90, begin_days=2)
    assert broker.said()
    assert broker.tls.context() is good
    broker.now_us += 2 * 86_400_000_000
    ((level, _),) = broker.said()
    assert level == "INFO"
    assert broker.tls.context() is not good


def test_a_pair_that_has_ended_takes_the_place_of_one_that_has_ended_and_that_is_told(
    dated: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Watched(dated, caplog)
    broker.now_us += 21 * 86_400_000_000
    assert [level for level, _ in broker.said()] == ["ERROR"]
    pair = dated.issue("broker", days=19)
    said = broker.said()
    assert [level for level, _ in said] == ["INFO", "ERROR"]
    assert said[1][1].startswith(f"a certificate in {pair.cert} ended on ")
