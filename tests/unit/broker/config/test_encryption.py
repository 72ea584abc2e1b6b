"""Keys in the settings of a broker: read once, read again, shown nowhere."""

from __future__ import annotations

import asyncio
import logging
import sys
from pathlib import Path

import pytest

from penstock.base.errors import ConfigError, OperationalError
from penstock.broker.config.config import BrokerConfig, load, to_toml
from penstock.broker.config.encryption import encrypted, read_again
from penstock.broker.supervision.supervised import ConfigHandoff, decode, encode
from penstock.commitlog.files.files import holds_messages
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.keys import new_key_line, parse_keys
from penstock.vfs.memory import MemoryVfs

LINE = new_key_line("first", lambda length: b"k" * length)
OTHER = new_key_line("second", lambda length: b"o" * length)


def config_of(**environment: str) -> BrokerConfig:
    return load(environment={f"PENSTOCK_{name.upper()}": value for name, value in environment.items()})


def test_keys_come_from_a_file_or_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{OTHER}\n{LINE}\n")
    assert config_of(encryption_keys=LINE).encryption_keys == LINE
    config = config_of(encryption_keys_file=str(file))
    assert parse_keys(config.encryption_keys or "").ids == ("second", "first")
    assert config.encryption_keys_file == file
    assert config_of().encryption_keys is None


def test_keys_are_shown_nowhere_and_handed_to_a_broker_under_a_supervisor() -> None:
    config = config_of(encryption_keys=LINE)
    secret = LINE.split()[1]
    for shown in (repr(config), to_toml(config), repr(config.shown)):
        assert secret not in shown
    assert decode(encode(ConfigHandoff(config))).config == config


@pytest.mark.parametrize(
    ("environment", "mistake"),
    [
        ({"encryption_keys": "nonsense"}, "PENSTOCK_ENCRYPTION_KEYS: line 1: the key has 0 bytes"),
        ({"encryption_keys_file": "/none"}, "PENSTOCK_ENCRYPTION_KEYS_FILE: cannot read /none"),
        ({"encrypt_internal_streams": "true"}, "there are no keys to encrypt them with"),
        ({"encryption_keys": LINE, "encryption_keys_file": "/none"}, "encryption_keys is set too"),
    ],
)
def test_mistakes_say_where_and_nothing_more(environment: dict[str, str], mistake: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config_of(**environment)
    assert len(raised.value.mistakes) == 1
    assert mistake in raised.value.mistakes[0]


async def test_without_keys_nothing_is_encrypted_and_without_the_extra_keys_are_of_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    assert encrypted(MemoryVfs(), config_of(), loop) is None
    assert encrypted(MemoryVfs(), config_of(encryption_keys=LINE), loop) is not None
    monkeypatch.setitem(sys.modules, "penstock.vfs.encrypted", None)
    with pytest.raises(OperationalError, match=r"pip install '\.\[encryption\]'"):
        encrypted(MemoryVfs(), config_of(encryption_keys=LINE), loop)


async def test_a_broker_that_is_started_again_takes_the_keys_that_its_file_holds_by_then(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{LINE}\n")
    handed = decode(encode(ConfigHandoff(config_of(encryption_keys_file=str(file))))).config  # as the supervisor began
    file.write_text(f"{OTHER}\n{LINE}\n")
    memory = MemoryVfs()
    vfs = encrypted(memory, handed, asyncio.get_running_loop())
    assert vfs is not None
    vfs.open("streams/00000004-orders/0/00000000000000000000.arrows", create=True).write_at(0, b"message")
    only_new = EncryptedVfs(memory, parse_keys(OTHER), holds_messages)
    opened = only_new.open("streams/00000004-orders/0/00000000000000000000.arrows")
    assert bytes(opened.read_at(0, 7)) == b"message"


async def test_a_file_that_has_gone_leaves_a_broker_that_is_started_again_with_those_of_before(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{LINE}\n")
    handed = decode(encode(ConfigHandoff(config_of(encryption_keys_file=str(file))))).config
    file.unlink()
    assert encrypted(MemoryVfs(), handed, asyncio.get_running_loop()) is not None


def test_what_cannot_be_read_again_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "keys"
    keys = parse_keys(LINE)
    read_again(file, keys)
    file.write_bytes(b"\xff\xfe")
    read_again(file, keys)
    file.write_text("nonsense")
    read_again(file, keys)
    assert keys.ids == ("first",)
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
    file.write_text(f"{OTHER}\n{LINE}")
    file.chmod(0o600)
    read_again(file, keys)
    assert keys.ids == ("second", "first")
    assert caplog.records[-1].levelname == "INFO"
    file.write_text(OTHER)
    read_again(file, keys)
    assert keys.ids == ("second", "first")
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"{file} does not have the key first any more" in told
    assert "penstock keys rewrap" in told
    file.write_text(new_key_line("first", lambda length: b"x" * length))
    read_again(file, keys)
    assert keys.ids == ("second", "first")
    assert "the key 'first' is another one than before" in caplog.text
    assert not any(line.split()[1] in caplog.text for line in (LINE, OTHER))


def test_keys_are_read_once_at_the_start_and_the_mode_of_a_new_file_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{LINE}\n")
    config = config_of(encryption_keys_file=str(file))
    loop = asyncio.new_event_loop()
    with caplog.at_level(logging.INFO):
        assert encrypted(MemoryVfs(), config, loop) is not None
    loop.close()
    assert caplog.records == []
    file.chmod(0o644)
    read_again(file, parse_keys(LINE))
    (told,) = [one for one in caplog.records if one.levelname == "WARNING"]
    assert "with mode 0644 others than its owner may use it: chmod 600" in told.getMessage()
