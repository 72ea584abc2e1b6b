"""What clients hear of errors: in plain words, with a code that fits."""

from __future__ import annotations

import errno

import pytest

from penstock.base.errors import CorruptionError, ErrorCode, RemoteError
from penstock.commitlog.errors import storage_error
from penstock.node.partition.partition_errors import as_remote_error, not_appended, not_opened, read_failed
from penstock.vfs.keys import KeyMissingError
from tests.encryption import encryption_keys


def lacking() -> KeyMissingError:
    with pytest.raises(KeyMissingError) as raised:
        encryption_keys("second").key("first", "f.arrows")
    return raised.value


def wrapped() -> Exception:
    """As a log tells it."""
    try:
        raise storage_error("f.arrows cannot be opened", lacking()) from lacking()
    except Exception as error:  # noqa: BLE001 (it has its cause now)
        return error


@pytest.mark.parametrize(
    ("told", "what"),
    [
        (as_remote_error(lacking()), "and send it SIGHUP"),
        (as_remote_error(wrapped()), "and send it SIGHUP"),
        (read_failed(lacking()), "and send it SIGHUP"),
        (not_appended(wrapped(), is_fenced=False), "and send it SIGHUP"),  # type: ignore[arg-type]
        (not_opened(lacking()), "and send it SIGHUP"),
        (not_opened(wrapped()), "and send it SIGHUP"),
    ],
)
def test_a_key_that_is_missing_is_named_and_what_to_do(told: RemoteError, what: str) -> None:
    assert (told.code, told.details) == (ErrorCode.NO_ENCRYPTION_KEY, {"key_id": "first"})
    assert "with the key 'first', which is not among the keys here ('second')" in told.message
    assert told.message.endswith(f"; put that key into the broker's encryption_keys_file, {what}")
    assert "Errno" not in told.message
    assert "disk" not in told.message


def test_where_another_key_has_its_id_reading_the_file_again_will_not_do() -> None:
    told = not_opened(KeyMissingError("it is another", "f.arrows", "first", is_other=True))
    assert told.message.endswith("; put that key into the broker's encryption_keys_file, and start it again")


def test_a_format_that_is_not_known_is_no_matter_of_keys_to_bring() -> None:
    told = as_remote_error(KeyMissingError("it is encrypted in format 9", "f.arrows"))
    assert told.message == "the broker cannot read it: f.arrows: it is encrypted in format 9"


def test_damage_is_told_with_what_was_expected_and_found() -> None:
    told = as_remote_error(CorruptionError("f.arrows", 568, "CRC-32C 01", "02"))
    assert told.details == {"file": "f.arrows", "position": 568, "expected": "CRC-32C 01", "found": "02"}
    assert told.message == "what is stored there is damaged: f.arrows: at byte 568: expected CRC-32C 01, found 02"


def test_any_other_error_is_the_disk_s() -> None:
    broken = OSError(errno.EIO, "broken", "f.arrows")
    for told in (as_remote_error(broken), read_failed(broken), not_opened(broken)):
        assert (told.code, told.details) == (ErrorCode.STORAGE_FAILED, {})
