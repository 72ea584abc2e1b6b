"""URLs and credentials: every form, every mistake, no secret shown."""

from __future__ import annotations

from pathlib import Path

import nkeys
import pytest

from penstock.base.errors import ConfigError, OperationalError
from penstock.broker.security.nats_credentials import (
    NatsCredentials,
    NatsServer,
    TlsFiles,
    parse_nats_urls,
    read_credentials,
)
from penstock.ingest.connect import ANONYMOUS

SEED = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER).decode()
CREDS = (
    "-----BEGIN NATS USER JWT-----\na.b.c\n------END NATS USER JWT------\n\n"
    f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
)


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("nats://h:1", [NatsServer("h", 1)]),
        ("h:1", [NatsServer("h", 1)]),
        ("h", [NatsServer("h", 4222)]),
        ("tls://h", [NatsServer("h", 4222, tls=True)]),
        ("NATS://h/", [NatsServer("h")]),
        ("nats://[::1]:5", [NatsServer("::1", 5)]),
        ("nats://u:p%40%2C%3a@h", [NatsServer("h", user="u", password="p@,:")]),
        ("nats://u:p@ss@h", [NatsServer("h", user="u", password="p@ss")]),
        ("nats://u:p#/?%+ é@h", [NatsServer("h", user="u", password="p#/?%+ é")]),
        (
            "nats://u:p@h,nats://v:q@i",
            [NatsServer("h", user="u", password="p"), NatsServer("i", user="v", password="q")],
        ),
        ("nats://u:@h", [NatsServer("h", user="u", password="")]),
        ("nats://tok@h:9", [NatsServer("h", 9, token="tok")]),
        (" nats://a , tls://b:2,", [NatsServer("a"), NatsServer("b", 2, tls=True)]),
    ],
)
def test_urls(text: str, servers: list[NatsServer]) -> None:
    assert list(parse_nats_urls(text)) == servers


def test_every_mistake_in_urls_is_named_without_secrets() -> None:
    text = "http://a,nats://u:hidden@b:x,nats://hidden@c:70000,nats://,nats://d:0,nats://hidden@e/path,nats://[::1,ok"
    with pytest.raises(ConfigError) as raised:
        parse_nats_urls(text)
    assert len(raised.value.mistakes) == 7
    assert "hidden" not in str(raised.value)
    with pytest.raises(ConfigError, match="no URL given"):
        parse_nats_urls(" , ")


@pytest.mark.parametrize(
    "text",
    [
        "nats://u:hid,den@h:4222",
        "u:hid,den@h",
        "nats://u:4222,hidden@h",
        "nats://u:hid@h,den@i",
        "nats://a:1,nats://u:hid,den@h:4222",
    ],
)
def test_a_comma_in_a_password_is_told_and_none_of_it_is_shown(text: str) -> None:
    with pytest.raises(ConfigError, match="a comma separates servers: write it in a password as %2C") as raised:
        parse_nats_urls(text)
    assert len(raised.value.mistakes) == 1
    assert not any(part in str(raised.value) for part in ("hid", "den@", "4222"))


@pytest.mark.parametrize("text", ["nats://u:hidden", "u:hidden", "nats://u:hid/den", "nats://u:4x#hidden"])
def test_a_password_whose_host_was_forgotten_is_not_shown(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_nats_urls(text)
    assert "hid" not in str(raised.value)
    assert "u" in str(raised.value)


MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"  # the byte order mark, as Windows' editors put it before a text


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
@pytest.mark.parametrize("begin", ["", MARK])
def test_files_mean_the_same_with_a_byte_order_mark_and_any_line_ends(tmp_path: Path, begin: str, end: str) -> None:
    file = tmp_path / "login"
    for text, expected in (
        ("u:pass word", NatsCredentials(user="u", password="pass word")),
        ("tok", NatsCredentials(token="tok")),
        (SEED, NatsCredentials(nkey_file=file)),
        (CREDS.replace("\n", end or "\n"), NatsCredentials(creds_file=file)),
    ):
        file.write_bytes(f"{begin}{text}{end}".encode())
        assert read_credentials(file) == expected
        said = expected.authentication(NatsServer("h"))
        assert said.token in (None, "tok"), "a seed is never sent"
        assert said.jwt in (None, "a.b.c")


@pytest.mark.parametrize("text", [f'"{SEED}"', f"\u200b{SEED}\n", f"{SEED} # ours", f"seed={SEED}", f"seed:{SEED}"])
def test_a_seed_with_something_beside_it_is_never_sent_as_a_token(tmp_path: Path, text: str) -> None:
    (tmp_path / "login").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="holds an nkey seed and something beside it") as raised:
        read_credentials(tmp_path / "login")
    assert SEED[8:20] not in str(raised.value)


def test_utf_16_is_told(tmp_path: Path) -> None:
    (tmp_path / "login").write_bytes("u:p\r\n".encode("utf-16"))
    with pytest.raises(ValueError, match="it is UTF-16, as PowerShell's > writes it: save it as UTF-8"):
        read_credentials(tmp_path / "login")
    with pytest.raises(OperationalError, match="UTF-16"):
        NatsCredentials(nkey_file=tmp_path / "login").authentication(NatsServer("h"))


@pytest.mark.parametrize("host", ["a b", "a\tb", "a\nnats", "\x8d\x13", 'nats_token="x"', "a..b", "x" * 64, "a'b"])
def test_what_cannot_be_a_host_is_refused_at_once(host: str) -> None:
    """And not once its name is looked up, again and again."""
    with pytest.raises(ConfigError, match="the host is neither a name nor an address"):
        parse_nats_urls(f"nats://{host}:4222")


def test_no_secret_is_shown() -> None:
    [server] = parse_nats_urls("nats://u:hidden@[::1]:5")
    assert str(server) == "nats://[::1]:5"
    assert str(parse_nats_urls("tls://hidden@h")[0]) == "tls://h:4222"
    shown = f"{server!r}{NatsCredentials(user='u', password='hidden')!r}{NatsCredentials(token='hidden')!r}"
    assert "hidden" not in shown


def test_ways_to_authenticate(tmp_path: Path) -> None:
    nkey, creds = tmp_path / "user.nk", tmp_path / "user.creds"
    nkey.write_text(f"\n{SEED}\n")
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\neyJ.x.y\n------END NATS USER JWT------\n\n*** IMPORTANT ***\n"
        f"-----BEGIN USER NKEY SEED-----\n{SEED}\n------END USER NKEY SEED------\n"
    )
    server = NatsServer("h")
    public_key = bytes(nkeys.from_seed(SEED.encode()).public_key).decode()
    assert NatsCredentials().authentication(server) is ANONYMOUS
    said = NatsCredentials(user="u", password="p").authentication(server)
    assert (said.user, said.password) == ("u", "p")
    said = NatsCredentials(nkey_file=nkey).authentication(server)
    assert (said.nkey, said.jwt) == (public_key, None)
    assert said.sign is not None
    assert nkeys.from_seed(SEED.encode()).verify(b"nonce", said.sign(b"nonce"))
    assert SEED not in repr(said)
    said = NatsCredentials(creds_file=creds).authentication(server)
    assert (said.nkey, said.jwt) == (None, "eyJ.x.y")
    assert NatsCredentials(nkey_file=nkey, creds_file=None).mistakes() == []
    # What the URL holds goes before.
    assert NatsCredentials(token="t").authentication(NatsServer("h", user="u", password="p")).user == "u"


def test_every_mistake_in_credentials_is_named(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_text("S" + "A" * 57)
    empty = tmp_path / "empty"
    empty.write_text("")
    assert len(NatsCredentials(user="u", token="t").mistakes()) == 2
    assert len(NatsCredentials(password="p").mistakes()) == 1
    assert "cannot read" in NatsCredentials(nkey_file=tmp_path / "none").mistakes()[0]
    assert "holds no nkey seed" in NatsCredentials(nkey_file=empty).mistakes()[0]
    assert "damaged" in NatsCredentials(nkey_file=damaged).mistakes()[0]
    assert "not a NATS credentials file" in NatsCredentials(creds_file=empty).mistakes()[0]
    with pytest.raises(OperationalError, match="cannot read"):
        NatsCredentials(creds_file=tmp_path / "none").authentication(NatsServer("h"))


def test_every_mistake_in_certificates_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    assert not TlsFiles()
    assert TlsFiles().mistakes() == []
    assert "empty.pem" in TlsFiles(ca_file=empty).mistakes()[0]
    assert "none.pem" in TlsFiles(cert_file=tmp_path / "none.pem").mistakes()[0]
    assert "needs a certificate" in TlsFiles(key_file=empty).mistakes()[0]


@pytest.mark.parametrize("text", ["me:hidden@tls://h:1", "hidden@nats://h", "me:hid/den@x://h", "me:hid://den@h"])
def test_what_stands_before_a_scheme_is_not_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_nats_urls(text)
    assert "hid" not in str(caught.value)
