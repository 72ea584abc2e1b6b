"""What waits for a save of the metadata: how much of it, and what nobody may refuse."""

from __future__ import annotations

from random import Random

import pytest

from penstock.base import limits
from penstock.base.ids import BrokerId
from penstock.node.quorum.metadata_save import MetadataSave
from penstock.node.quorum.pending_proposals import Input
from penstock.raft import Raft, RaftConfig, RaftStorage
from penstock.raft.messages import ReadRequest
from penstock.vfs.memory import MemoryVfs

ONE, TWO = BrokerId(1), BrokerId(2)


@pytest.fixture
def saving() -> MetadataSave:
    saving = MetadataSave(Raft(RaftConfig(ONE), Random(1), RaftStorage.open(MemoryVfs()).state))
    saving.begin()
    return saving


def question(number: int) -> ReadRequest:
    return ReadRequest(TWO, ONE, 1, number.to_bytes(4))


def test_what_nobody_would_hear_of_is_not_refused(saving: MetadataSave, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "METADATA_INPUTS_WAITING_MAX", 1)
    refused: list[object] = []
    for _ in range(2):
        saving.put(Input(lambda: None, refused.append))
    saving.put(Input(lambda: None, None))
    assert len(refused) == 1
    assert len(saving.take_inputs()) == 2


def test_messages_of_peers_wait_up_to_a_number_and_a_size(
    saving: MetadataSave, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "RAFT_MESSAGES_WAITING_MAX", 3)
    monkeypatch.setattr(limits, "RAFT_MESSAGE_BYTES_WAITING_MAX", 100)
    for size_bytes, held in ((10, 3), (60, 1)):
        for number in range(4):
            saving.received(question(number), size_bytes)
        assert list(saving.messages) == [question(number) for number in range(held)]
        saving.messages.clear()
