"""What a file of `--nats-creds` becomes for nats-py."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.nats_options import login_of, urls_of

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
    assert urls_of("") is None  # as PENSTOCK_SERVER and --server
    assert urls_of("nats://a:1, nats://b:2,") == ["nats://a:1", "nats://b:2"]
    assert urls_of("a:1,tls://user:pass@b:2") == ["a:1", "tls://user:pass@b:2"]
    with pytest.raises(ValueError, match=r"--nats: the scheme http:// is not supported; there are nats://") as raised:
        urls_of("http://user:SECRET@a:1")
    assert "SECRET" not in str(raised.value)
