"""What nats-py is given for URLs and files, so that they mean what they mean to a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.nats_logins import nats_urls, shown_url
from penstock.broker.security.nats_credentials import parse_nats_urls
from penstock.client.publish.nats_login import nats_login


def test_a_login_leaves_the_url_and_is_decoded() -> None:
    assert nats_login(["nats://u:p%40%23@h:1", "nats://u:p%40%23@i:1"], {}) == (
        ["nats://h:1", "nats://i:1"],
        {"user": "u", "password": "p@#"},
    )
    assert nats_login(["tls://t%3Aok@h"], {}) == (["tls://h"], {"token": "t:ok"})
    assert nats_login(["h:1"], {}) == (["h:1"], {})


@pytest.mark.parametrize("password", ["p#s", "p/s", "p?s", "p@ss", "p+s", "100%", "pass word", "paß", "p:s", ""])
def test_a_password_that_is_not_encoded_is_what_a_broker_takes_it_for(password: str) -> None:
    url = f"nats://u:{password}@h:1"
    (server,) = parse_nats_urls(url)
    assert nats_login([url], {}) == (["nats://h:1"], {"user": server.user, "password": server.password})
    assert server.password == password


@pytest.mark.parametrize(
    ("first", "second", "login"),
    [
        ("u:p%2f", "u:p%2F", {"user": "u", "password": "p/"}),
        ("u:p%41", "%75:pA", {"user": "u", "password": "pA"}),
        ("u:p%40", "u:p@", {"user": "u", "password": "p@"}),
        ("é:p", "%C3%A9:p", {"user": "é", "password": "p"}),
        ("t+x", "t%2Bx", {"token": "t+x"}),
    ],
)
def test_one_login_that_is_encoded_in_two_ways_is_one(first: str, second: str, login: dict[str, str]) -> None:
    assert nats_login([f"nats://{first}@h", f"nats://{second}@i"], {}) == (["nats://h", "nats://i"], login)


def test_servers_with_different_logins_keep_them_where_nats_py_reads_them_right() -> None:
    for urls in (["nats://u:p@h:1", "nats://v:q@i:1"], ["nats://u:p@h:1", "nats://i:1"]):
        assert nats_login(urls, {}) == (urls, {})
    for other in ("nats://v:q%40@i:1", "nats://v:q#x@i:1", "nats://v:hidden/@i"):
        with pytest.raises(ValueError, match="different logins") as raised:
            nats_login(["nats://u:p@h:1", other], {})
        assert "hidden" not in str(raised.value)


def test_an_option_of_its_own_counts_for_all_servers() -> None:
    assert nats_login(["nats://u:p@h:1"], {"token": "t"}) == (["nats://h:1"], {})


def test_a_file_that_is_none_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nothing")
    with pytest.raises(ValueError, match="is not a NATS credentials file: it holds no user JWT"):
        nats_login(["h"], {"user_credentials": str(tmp_path / "x")})
    with pytest.raises(ValueError, match="holds no nkey seed"):
        nats_login(["h"], {"nkeys_seed": str(tmp_path / "x")})


@pytest.mark.parametrize("login", ["u:hidden", "u:hid#den", "u:hid/den", "u:hid@den", "hid?den", "u:hid%40den"])
def test_a_url_is_shown_without_its_login(login: str) -> None:
    assert shown_url(f"nats://{login}@[::1]:4222") == "nats://[::1]:4222"
    assert shown_url("nats://h:1") == "nats://h:1"
    assert shown_url(f"{login}@h:1") == "h:1"
    assert nats_urls(f"nats://{login}@h, nats://i") == [f"nats://{login}@h", "nats://i"]
