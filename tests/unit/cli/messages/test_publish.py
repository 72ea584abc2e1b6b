"""What `penstock publish` says of an ack."""

from __future__ import annotations

import pytest

from penstock.cli.messages.publish import how_safely
from penstock.client.values import PubAck


@pytest.mark.parametrize(
    ("replicas", "fsynced", "said"),
    [
        (None, None, ""),
        (None, True, ", on disk"),
        (1, True, ", on disk"),
        (1, False, ", in memory, not synced"),
        (3, False, ", on 3 replicas (in memory, not synced)"),
        (3, True, ", on 3 replicas (on their disks)"),
    ],
)
def test_an_ack_says_where_the_message_lies(replicas: int | None, fsynced: bool | None, said: str) -> None:
    assert how_safely(PubAck("a", 1, replicas=replicas, fsynced=fsynced)) == said
