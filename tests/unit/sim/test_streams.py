"""What goes to the stream that is compacted: something of everything, and nothing twice."""

from __future__ import annotations

from penstock.base.config import StreamConfig
from tests.sim.models.streams import keyed

CONFIG = StreamConfig(name="a", subject="a.>", compact=True)
MESSAGES = [keyed(CONFIG, number, 0) for number in range(1, 400)]


def test_each_is_known_by_a_name_of_its_own() -> None:
    assert len({message.name for message in MESSAGES}) == len(MESSAGES)
    assert len({message.subject for message in MESSAGES}) == len(MESSAGES)


def test_some_have_no_key_and_some_no_value() -> None:
    keyless = [message for message in MESSAGES if message.key is None]
    tombstones = [message for message in MESSAGES if message.row.is_tombstone]
    assert 0 < len(keyless) < len(MESSAGES) // 4
    assert 0 < len(tombstones) < len(MESSAGES) // 3
    assert all(message.value is not None and not message.headers for message in keyless)
    assert all(
        message.name == message.subject and b"Penstock-Tombstone: 1" in message.headers for message in tombstones
    )


def test_tombstones_are_the_last_of_some_keys_and_not_of_others() -> None:
    last = {message.key: message for message in MESSAGES}
    del last[None]
    assert {message.row.is_tombstone for message in last.values()} == {True, False}
    assert any(one.row.is_tombstone and last[one.key] is not one for one in MESSAGES)


def test_it_is_as_large_as_it_is_asked_to_be() -> None:
    assert len(keyed(CONFIG, 1, 0, 700).value or b"") == 700
