"""Secrets that a broker draws: kept for their owner, and never taken from a file that holds none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.access.users import ADMIN_CREDENTIALS_FILE
from penstock.base.errors import OperationalError
from penstock.broker.security.generated_secrets import (
    NATS_FILE,
    SECRET_FILE,
    drawn_password,
    embedded_password,
    nats_password,
    shared_secret,
)
from penstock.node.security.auth_markers import GUARDED_PATH


def test_what_was_drawn_is_found_again_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    password, is_new = drawn_password(tmp_path)
    assert is_new
    assert drawn_password(tmp_path) == (password, False)
    assert shared_secret(tmp_path) == shared_secret(tmp_path)
    assert nats_password(tmp_path) == nats_password(tmp_path)
    files = (ADMIN_CREDENTIALS_FILE, SECRET_FILE, NATS_FILE)
    assert {(tmp_path / one).stat().st_mode & 0o777 for one in files} == {0o600}


@pytest.mark.parametrize("text", ["", "\n", "admin", "admin:", ":password", "eve:password", "\0"])
def test_a_file_without_a_password_gives_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ADMIN_CREDENTIALS_FILE).write_text(text)
    with pytest.raises(OperationalError, match="restore it, or delete it"):
        drawn_password(tmp_path)
    assert (tmp_path / ADMIN_CREDENTIALS_FILE).read_text() == text


@pytest.mark.parametrize("text", ["", "\n", "short"])
def test_a_secret_that_is_cut_off_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / SECRET_FILE).write_text(text)
    with pytest.raises(OperationalError, match="is cut off"):
        shared_secret(tmp_path)


@pytest.mark.parametrize(
    "text", ["", "\n", "penstock", "penstock:", "admin:password", "penstock:short", 'penstock:$2a$11"}', "\0"]
)
def test_a_file_without_a_login_to_nats_gives_none(tmp_path: Path, text: str) -> None:
    (tmp_path / NATS_FILE).write_text(text)
    with pytest.raises(OperationalError, match="restore it, or delete it"):
        nats_password(tmp_path)
    assert (tmp_path / NATS_FILE).read_text() == text


def test_the_embedded_server_has_a_password_where_one_of_its_brokers_knows_users(tmp_path: Path) -> None:
    brokers = [tmp_path / "broker-1", tmp_path / "broker-2"]
    for broker in brokers:
        broker.mkdir()
    assert embedded_password(tmp_path, brokers, auth=False) is None
    assert not (tmp_path / NATS_FILE).exists()
    (brokers[1] / GUARDED_PATH).touch()
    password = embedded_password(tmp_path, brokers, auth=False)
    assert password is not None
    assert embedded_password(tmp_path, brokers, auth=True) == password


def test_nobody_waits_for_a_file_that_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NATS_FILE)
    (tmp_path / SECRET_FILE).mkdir()
    with pytest.raises(OperationalError, match=r"cannot read .*nats\.credentials: .*a FIFO"):
        nats_password(tmp_path)
    with pytest.raises(OperationalError, match=r"cannot read .*cluster\.secret: Is a directory"):
        shared_secret(tmp_path)


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o400, False), (0o660, True), (0o644, True)])
def test_a_secret_that_others_may_use_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, is_told: bool
) -> None:
    password = nats_password(tmp_path)
    (tmp_path / NATS_FILE).chmod(mode)
    caplog.clear()
    assert nats_password(tmp_path) == password
    assert ("chmod 600" in caplog.text) is is_told
    assert password not in caplog.text
