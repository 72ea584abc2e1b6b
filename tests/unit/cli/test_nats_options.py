"""What a file of `--nats-creds` becomes for nats-py."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.nats_options import login_of, servers_of, urls_of

SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"  # made for nothing else


def test_each_form_is_given_to_nats_py_as_it_takes_it(tmp_path: Path) -> None:
    file = tmp_path / "login"
    assert login_of(None) == {}
    for text, options in (
        ("app:a:b\n", {"user": "app", "password": "a:b"}),
        ("t0ken\n", {"token": "t0ken"}),
        (f"{SEED}\n", {"nkeys_seed": str(file)}),
    ):
        file.write_text(text)
        assert login_of(file) == options


def test_what_is_nothing_of_that_is_refused_without_saying_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "login"
    file.write_text("se\ncret")
    with pytest.raises(ValueError, match="holds no NATS credentials") as caught:
        login_of(file)
    assert "cret" not in str(caught.value)
    with pytest.raises(ValueError, match="cannot read"):
        login_of(tmp_path / "none")


def test_urls_are_parted_by_commas() -> None:
    assert urls_of(None) is None
    assert urls_of("nats://a:1, nats://b:2,") == ["nats://a:1", "nats://b:2"]


def test_servers_are_the_same_whatever_their_logins_and_how_these_are_encoded() -> None:
    same = ("nats://h", "h:4222", "tls://u:p%40@H:4222", "nats://u:p@@h")
    assert servers_of(same) == {("h", 4222)}
    assert servers_of(["nats://t@[::1]:1", "nats://[::1]:2"]) == {("::1", 1), ("::1", 2)}
    assert servers_of([]) == set()
    for bad in ("nats://u:hidden", "nats://:1", "nats://[u:hidden"):
        with pytest.raises(ValueError, match=r"names no host|is no URL") as caught:
            servers_of([bad])
        assert "hidden" not in str(caught.value)
