"""As whom NATS is tried."""

from __future__ import annotations

from pathlib import Path

import nkeys
import pytest

from penstock.base.errors import ConfigError
from penstock.broker.security.nats_credentials import NatsCredentials
from penstock.doctor.identities import Identity, Role, parse_identities


def test_one_line_is_a_user_and_its_password_or_a_token(tmp_path: Path) -> None:
    file = tmp_path / "shop.txt"
    file.write_text("shop:a:b\n")
    assert parse_identities([f"publisher:{file}:orders.>,payments.*"]) == [
        Identity(
            Role.PUBLISHER,
            "publisher shop.txt",
            NatsCredentials(user="shop", password="a:b"),
            ("orders.>", "payments.*"),
        )
    ]
    file.write_text("t0ken")
    assert parse_identities([f"other:{file}"])[0].credentials == NatsCredentials(token="t0ken")


def test_a_reader_has_streams(tmp_path: Path) -> None:
    (tmp_path / "shop.txt").write_text("shop:a")
    (reader,) = parse_identities([f"reader:{tmp_path}/shop.txt:orders,payments"])
    assert (reader.role, reader.subjects, reader.streams) == (Role.READER, (), ("orders", "payments"))


def test_an_nkey_seed_is_known(tmp_path: Path) -> None:
    file = tmp_path / "penstock.nk"
    file.write_bytes(nkeys.encode_seed(b"x" * 32, nkeys.PREFIX_BYTE_USER) + b"\n")
    assert parse_identities([f"penstock:{file}"])[0].credentials == NatsCredentials(nkey_file=file)


def test_mistakes_are_told_together_and_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "secret.txt"
    file.write_text("two lines\nhere: hunter2")
    empty = tmp_path / "whole.txt"
    empty.write_text("a:b")
    with pytest.raises(ConfigError) as raised:
        parse_identities(
            [
                *(f"penstock:{file}", "nobody:file", "publisher:", f"other:{tmp_path}/none"),
                *(f"penstock:{empty}:orders.>", f"publisher:{empty}:a..b", f"reader:{empty}:a.b"),
            ]
        )
    assert len(raised.value.mistakes) == 7
    assert "hunter2" not in str(raised.value)
