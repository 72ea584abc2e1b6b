"""Searches for messages: what one answer holds."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base.ids import Offset
from penstock.messages import AppendRequest, FindMessagesRequest, FindMessagesResponse
from tests.unit.node.harness import Broker, batch_of, rows_of

COUNT = 20


@pytest.mark.parametrize(
    "which",
    [
        {"which": "at", "offsets": tuple(Offset(one) for one in range(COUNT))},
        {"which": "last_of_each"},
        {"which": "last_of_each", "subjects": tuple(f"s.{one}" for one in range(COUNT))},
    ],
)
def test_keys_count_among_the_bytes_of_an_answer(which: dict[str, Any]) -> None:
    broker = Broker().start()
    broker.create("s", "s.*")
    rows = [(f"s.{number}", b"k" * 1_000, b"v", None) for number in range(COUNT)]
    broker.request(AppendRequest(stream_id=broker.stream_id("s")), bytes(batch_of(rows)))
    broker.settle()
    request = FindMessagesRequest(stream_id=broker.stream_id("s"), limit=COUNT, bytes_max=5_000, **which)
    caller = broker.request(request)
    broker.settle()
    found = rows_of(broker.payloads[caller], broker.stream_id("s"))
    assert [row.offset for row in found] == [0, 1, 2, 3, 4]
    assert broker.answer(caller, FindMessagesResponse).next_offset == 5
