"""A stream whose key is missing at the start: the node opens it once the keys were read again."""

from __future__ import annotations

import pytest

from penstock.commitlog.files.files import holds_messages
from penstock.vfs.encrypted import EncryptedVfs
from penstock.vfs.keys import EncryptionKeys
from penstock.vfs.memory import MemoryVfs
from tests.encryption import encryption_keys
from tests.unit.node.harness import Broker


def started(memory: MemoryVfs, keys: EncryptionKeys) -> Broker:
    return Broker(memory, encrypted=EncryptedVfs(memory, keys, holds_messages)).start()


@pytest.fixture
def memory() -> MemoryVfs:
    """With a stream that has a message."""
    broker = started(MemoryVfs(), encryption_keys("first"))
    broker.create("orders", encryption="aes-256-gcm")
    broker.append("orders", b"1")
    broker.stop()
    return broker.memory


def test_what_lacked_a_key_is_opened_once_that_is_there(memory) -> None:
    keys = encryption_keys("second")
    broker = started(memory, keys)
    assert any("'first'" in notice for notice in broker.notices)
    keys.replace(encryption_keys("second", "first"))
    broker.node.keys_read(broker.clock.now)
    broker.turn()
    assert broker.values("orders") == [b"1"]
    broker.publish("orders.a", b"2", reply="r")
    broker.settle()
    assert broker.values("orders") == [b"1", b"2"]


def test_a_key_that_comes_while_a_log_is_tried_is_not_overlooked(memory) -> None:
    keys = encryption_keys("second")
    broker = started(memory, keys)
    broker.disk_runs_at_once = False
    broker.node.keys_read(broker.clock.now)
    broker.turn()
    executed = broker.execute(0)
    assert executed.error is not None
    keys.replace(encryption_keys("second", "first"))
    broker.node.keys_read(broker.clock.now)
    broker.disk_runs_at_once = True
    broker.complete(executed)
    broker.turn()
    assert broker.values("orders") == [b"1"]


def test_what_cannot_be_opened_for_another_reason_is_left_as_it_is(memory) -> None:
    for path in [one for one in memory.files() if one.endswith(("checkpoint", ".arrows"))]:
        memory.remove(path)
    broker = started(memory, encryption_keys("first"))
    notices = list(broker.notices)
    broker.node.keys_read(broker.clock.now)
    broker.turn()
    assert not broker.disk
    assert broker.notices == notices
