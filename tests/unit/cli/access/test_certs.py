"""Certificates that `penstock certs` makes work, and never replace others."""

from __future__ import annotations

import os
import ssl
import stat
import sys
from pathlib import Path

import pytest
from cryptography import x509
from typer.testing import CliRunner

from penstock.broker.config.tls_settings import BrokerTls
from penstock.client.link.tls import ClientTls, TlsOptions
from tests.cli_app import app


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["certs", *arguments])
    return result.exit_code, result.output + result.stderr


def test_broker_and_client_take_what_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "certs"
    before = os.umask(0o022)
    try:
        code, said = run(str(folder), "--hosts", "a.example.com, 10.0.0.1", "--client", "ann")
    finally:
        os.umask(before)
    assert (code, said) == (0, f"8 files in {folder}, good for 365 days, for a.example.com, 10.0.0.1\n")
    for file in folder.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) & 0o077 == (0 if file.suffix == ".key" else 0o044)
    broker = BrokerTls(
        cert_file=folder / "broker.pem",
        key_file=folder / "broker.key",
        ca_file=folder / "ca.pem",
        client_ca_file=folder / "client-ca.pem",
    )
    assert broker.mistakes() == []
    client = ClientTls(TlsOptions(folder / "ca.pem", folder / "client.pem", folder / "client.key"))
    for name, said in (("a.example.com", ""), ("10.0.0.1", ""), ("b.example.com", "Hostname mismatch")):
        assert said in shaken_hands(broker.load().server, client.dialling(name))
    certificate = x509.load_pem_x509_certificate((folder / "client.pem").read_bytes())
    assert certificate.subject.rfc4514_string() == "CN=ann"
    lifetime = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lifetime.days == 365


def shaken_hands(server: ssl.SSLContext, dialling: dict[str, object]) -> str:
    """Why not; empty: they have."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = dialling["ssl"]
    assert isinstance(context, ssl.SSLContext)
    asks = context.wrap_bio(down, up, server_hostname=str(dialling["server_hostname"]))
    answers = server.wrap_bio(up, down, server_side=True)
    for side in (asks, answers, asks, answers):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            return str(error)
    return ""


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "client.key").write_text("mine")
    code, said = run(str(tmp_path))
    assert code != 0
    assert "has client.key already, and nothing is overwritten" in said
    assert [file.name for file in tmp_path.iterdir()] == ["client.key"]
    assert (tmp_path / "client.key").read_text() == "mine"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    code, said = run(str(tmp_path))
    assert code != 0
    assert "pip install '.[tls]'" in said
