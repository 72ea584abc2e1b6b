"""What `--nats-creds` and `--nats-tls-…` become for nats-py."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.base.errors import ConfigError
from penstock.cli.terminal.nats_options import login_of, tls_of, urls_of
from tests.certificates import Authority
from tests.cli_app import app

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


def test_files_for_tls_become_a_context_that_checks_the_server(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("shop")
    assert tls_of(None, None, None) == {}
    for files in ((authority.ca, None, None), (None, pair.cert, pair.key), (authority.ca, pair.cert, pair.key)):
        context = tls_of(*files)["tls"]
        assert context.check_hostname
    with pytest.raises(ConfigError, match="a TLS key file needs a certificate file"):
        tls_of(authority.ca, None, pair.key)
    pair.key.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        tls_of(authority.ca, pair.cert, pair.key)


@pytest.mark.parametrize(
    "command",
    [["publish", "orders.eu", "x"], ["relay", "orders", "--to", "x"], ["import", "--from-jetstream", "ORDERS"]],
)
def test_each_command_that_speaks_nats_takes_them(command: list[str]) -> None:
    done = CliRunner().invoke(app, [*command, "--nats-tls-ca", "none.pem", "--nats", "nats://127.0.0.1:1"])
    assert "cannot use none.pem for TLS: No such file" in " ".join(done.output.split()), done.output
