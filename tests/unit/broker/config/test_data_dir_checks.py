"""Settings that do not fit the data directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.addresses import Address
from penstock.base.errors import ConfigError
from penstock.base.ids import BrokerId
from penstock.broker.config.config import BrokerConfig, load
from penstock.broker.config.data_dir import (
    DataDir,
    admin_password_advice,
    is_alone,
    take_data_dir,
)
from penstock.node.data_dir.known_brokers import KnownBrokers
from penstock.node.security.auth_markers import GUARDED_PATH

THREE = "1@127.0.0.1:7001,2@127.0.0.1:7002,3@127.0.0.1:7003"


def knows(*addresses: str) -> KnownBrokers:
    known = {BrokerId(number): address for number, address in enumerate(addresses, 1)}
    return KnownBrokers(frozenset(known), known)


LOCAL = knows("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003")
REMOTE = knows("10.0.0.1:7422", "10.0.0.2:7422", "10.0.0.3:7422")
ALONE = KnownBrokers(frozenset({BrokerId(2)}), {BrokerId(2): "127.0.0.1:7422"})


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[DataDir]:
    held = take_data_dir(tmp_path / "data", BrokerId(2))
    yield held
    held.release()


def config(**flags: object) -> BrokerConfig:
    return load(environment={}, flags={"id": 2, **flags})


def refused(data_dir: DataDir, known: KnownBrokers, **flags: object) -> str:
    with pytest.raises(ConfigError) as caught:
        data_dir.checked(config(**flags), known)
    return str(caught.value)


def test_a_new_directory_takes_every_setting(data_dir: DataDir) -> None:
    given = config(cluster=THREE, nats="h")
    assert data_dir.checked(given, None) == given
    assert not is_alone(given, None)
    assert is_alone(config(), None)


def test_who_listens_elsewhere_than_the_list_says_has_moved_or_is_refused(data_dir: DataDir) -> None:
    moved = config(cluster=THREE, nats="h", listen="127.0.0.1:9")
    placed = data_dir.checked(moved, LOCAL)
    assert (placed.listen, placed.advertise) == (Address("127.0.0.1", 9), None)
    with pytest.raises(ConfigError) as caught:
        data_dir.checked(moved, None)
    assert "would be at 127.0.0.1:9, and --cluster says 2@127.0.0.1:7002" in str(caught.value)
    told = config(cluster=THREE, nats="h", listen="127.0.0.1:9", advertise="127.0.0.1:7002")
    assert data_dir.checked(told, None) == told


def test_a_directory_of_several_needs_their_nats(data_dir: DataDir) -> None:
    text = refused(data_dir, LOCAL)
    assert "belongs to a cluster of several, with brokers 1, 3" in text
    assert str(data_dir.path) in text
    assert "set nats (--nats)" in text
    assert not is_alone(config(nats="h"), LOCAL)


@pytest.mark.parametrize("flags", [{"cluster": THREE}, {"join": "127.0.0.1:7001"}])
def test_a_directory_that_was_used_alone_is_no_member(data_dir: DataDir, flags: dict[str, str]) -> None:
    text = refused(data_dir, ALONE, nats="h", **flags)
    assert "is that of broker 2 alone, with a cluster of its own" in text
    assert "wrong --data-dir?" in text
    assert is_alone(data_dir.checked(config(), ALONE), ALONE)


def test_a_directory_of_others_is_refused_and_one_of_some_of_these_is_not(data_dir: DataDir) -> None:
    elsewhere = "2@127.0.0.1:7002,8@127.0.0.1:7008,9@127.0.0.1:7009"
    text = refused(data_dir, LOCAL, cluster=elsewhere, nats="h")
    assert "belongs to a cluster with brokers 1, 3, and --cluster names brokers 8, 9: wrong --data-dir?" in text
    grown = config(cluster=f"{THREE},4@127.0.0.1:7004", nats="h")  # broker 4 came while this one was away
    assert data_dir.checked(grown, LOCAL) == grown


def test_a_broker_that_does_not_say_where_it_is_stays_where_it_was(data_dir: DataDir) -> None:
    assert data_dir.checked(config(nats="h"), LOCAL).listen == Address("127.0.0.1", 7002)
    assert data_dir.checked(config(nats="h", insecure=True), REMOTE).listen == Address("10.0.0.2", 7422)
    assert "without a login" in refused(data_dir, REMOTE, nats="h")
    said = config(nats="h", listen="127.0.0.1:9999")
    assert data_dir.checked(said, LOCAL) == said


def test_who_listens_everywhere_is_told_as_before(data_dir: DataDir) -> None:
    placed = data_dir.checked(config(nats="h", listen="0.0.0.0:7422", insecure=True), REMOTE)
    assert (placed.listen, placed.advertise) == (Address("0.0.0.0", 7422), Address("10.0.0.2", 7422))


@pytest.mark.parametrize("bad", ["h:99999", "h:", "[::1", "a..b:1"])
def test_an_address_that_is_none_ends_no_start(data_dir: DataDir, bad: str) -> None:
    known = LOCAL._replace(addresses={**LOCAL.addresses, BrokerId(1): bad, BrokerId(2): bad})
    assert data_dir.checked(config(nats="h"), known) == config(nats="h")


def test_an_address_that_the_others_do_not_reach_is_refused(data_dir: DataDir) -> None:
    text = refused(data_dir, REMOTE, nats="h", listen="127.0.0.1:7422")
    assert "this broker is at 127.0.0.1:7422, where they, at 10.0.0.1:7422, do not find it" in text


def test_a_short_password_of_the_first_administrator_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("1234567\n")
    short = config(auth=True, admin_password_file=str(file))
    with pytest.raises(ConfigError, match=r"^--admin-password-file: the password has 7 characters; take 8 at least$"):
        admin_password_advice(short, [tmp_path])
    file.write_text("12345678\n")
    assert admin_password_advice(config(auth=True, admin_password_file=str(file)), [tmp_path]) == ""
    assert admin_password_advice(config(auth=True), [tmp_path]) == ""


def test_where_there_are_users_the_password_of_the_first_one_is_ignored_and_that_is_told(tmp_path: Path) -> None:
    (tmp_path / GUARDED_PATH).touch()
    told = admin_password_advice(config(auth=True, admin_password="short"), [tmp_path / "none", tmp_path])
    assert told.startswith("--admin-password is ignored: there are users already")
    assert admin_password_advice(config(auth=True), [tmp_path]) == ""
