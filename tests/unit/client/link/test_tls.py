"""When a client speaks TLS, and with which files."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.client.link.addresses import parse_servers, parse_tls, with_tls
from penstock.client.link.tls import ClientTls, TlsOptions, settled
from tests.certificates import Authority

CA = {"PENSTOCK_TLS_CA": "/e/ca"}
PAIR = {"PENSTOCK_TLS_CERT": "/e/cert", "PENSTOCK_TLS_KEY": "/e/key"}


@pytest.mark.parametrize(
    ("servers", "tls", "environment", "options"),
    [
        (["a:1"], None, {}, None),
        (["a:1"], None, PAIR, None),
        (["a:1"], None, CA, TlsOptions(ca="/e/ca")),
        (["a:1"], None, CA | PAIR, TlsOptions("/e/ca", "/e/cert", "/e/key")),
        (["a:1"], False, CA | PAIR, None),
        (["a:1"], True, {}, TlsOptions()),
        (["a:1"], True, CA | PAIR, TlsOptions("/e/ca", "/e/cert", "/e/key")),
        (["a:1"], TlsOptions(ca="/o"), CA | PAIR, TlsOptions("/o", "/e/cert", "/e/key")),
        (["a:1"], TlsOptions(cert="/o"), CA | PAIR, TlsOptions("/e/ca", "/o")),  # its key is in the same file
        (["tls://a:1"], None, {}, TlsOptions()),
        (["tls://a:1"], None, CA, TlsOptions(ca="/e/ca")),
        (["tls://a:1?ca=/u"], None, CA, TlsOptions(ca="/u")),
        (["tls://a:1?ca=/u&cert=/c&key=/k&server_name=n"], None, PAIR, TlsOptions("/u", "/c", "/k", "n")),
        (["tls://a:1?ca=/u"], TlsOptions(ca="/o"), {}, TlsOptions(ca="/o")),
        (["tls://a:1?cert=/u&key=/k"], TlsOptions(cert="/o"), {}, TlsOptions(cert="/o")),
    ],
)
def test_what_is_said_where_makes_the_options(
    servers: list[str], tls: bool | TlsOptions | None, environment: dict[str, str], options: TlsOptions | None
) -> None:
    assert settled(servers, tls, environment) == (("a:1",), options)


@pytest.mark.parametrize(
    ("servers", "tls", "said"),
    [
        (["tls://a:1", "b:2"], None, "some servers have tls://, some not"),
        (["tls://a:1"], False, "and tls is False"),
        (["tls://a:1?ca=/x", "tls://b:2?ca=/y"], None, "two servers say different files for ca: /x and /y"),
        (["tls://a:1?co=/x"], None, "there is no 'co'; known are ca, cert, key, server_name"),
        (["tls://a:1?ca"], None, "which is not NAME=FILE"),
    ],
)
def test_what_does_not_go_together_is_told(servers: list[str], tls: bool | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settled(servers, tls, {})


def test_files_come_through_an_address_whatever_they_are_called() -> None:
    strange = "/a b,c&d=e?f%20/ü.pem"
    address = with_tls("a:1", {"ca": strange})
    assert parse_servers(f"{address},{address.replace('a:1', 'b:1')}") == (address, address.replace("a:1", "b:1"))
    assert parse_tls(address) == ("a:1", {"ca": strange})
    assert parse_tls(with_tls(address, {"key": "k"})) == ("a:1", {"ca": strange, "key": "k"})
    assert parse_tls(with_tls("tls://[::1]:7", {})) == ("[::1]:7", {})


@pytest.mark.parametrize(
    "text",
    [
        "user:SECRET@h:1",
        "nats://user:SECRET@h:1",
        "tls://user:SECRET@h:1",
        "tls://user:a?SECRET@h:1",
        "tls://user:a?SECRET=b@h:1",
        "a:1,user:SECRET,SECRET@h:1",
    ],
)
def test_no_part_of_a_login_is_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="an address has no login") as raised:
        parse_servers(text)
    assert "'h:1'; --credentials FILE" in str(raised.value)
    assert "SECRET" not in str(raised.value)


def test_a_scheme_and_an_ipv6_address_without_brackets_are_told() -> None:
    with pytest.raises(ValueError, match=r"no scheme \(http://\): write HOST:PORT, as in 'h:1'"):
        parse_servers("http://h:1")
    with pytest.raises(ValueError, match=r"another port, usually 7422: write HOST:PORT, as in '127.0.0.1:7422'$"):
        parse_servers("nats://127.0.0.1:4222")
    with pytest.raises(ValueError, match=r"needs brackets: \[::1\]:27422$"):
        parse_servers("::1:27422")
    with pytest.raises(ValueError, match=r"needs brackets: \[::1\]:7422$"):
        parse_servers("::1:7422")
    assert parse_servers("::1,fe80::1:2") == ("::1", "fe80::1:2")


def test_files_that_change_are_used_for_the_next_connection_unless_they_are_broken(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("client")
    tls = ClientTls(TlsOptions(authority.ca, pair.cert, pair.key))
    first = tls.dialling("a")
    assert tls.dialling("a")["ssl"] is first["ssl"]
    assert first["server_hostname"] == "a"
    pair.cert.write_text("half of it")
    assert tls.dialling("a")["ssl"] is first["ssl"]
    authority.issue("client")
    assert tls.dialling("a")["ssl"] is not first["ssl"]


def test_a_certificate_that_comes_without_its_key_is_told(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("client")
    with pytest.raises(ValueError, match=r"cannot use .*\.pem for TLS: it holds no private key: .*--tls-key"):
        ClientTls(TlsOptions(authority.ca, pair.cert))
    both = tmp_path / "both.pem"
    both.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    ClientTls(TlsOptions(authority.ca, both))
    with pytest.raises(ValueError, match=r"No such file or directory$"):
        ClientTls(TlsOptions(authority.ca, tmp_path / "none.pem"))
