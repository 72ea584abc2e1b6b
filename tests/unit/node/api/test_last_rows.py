"""Last messages kept in memory, beside what else a leader knows of its subjects."""

from __future__ import annotations

import gc

import pytest

from penstock.base.config import Discard
from penstock.live.row_set import RowSet
from penstock.messages import FindMessagesRequest, FindMessagesResponse
from penstock.node.api.last_rows import LastRows
from penstock.node.partition.visible_rows import AppliedMarks
from tests.unit.node.harness import Broker

FULL = "maximum messages per subject exceeded"


def look_up(broker: Broker, *subjects: str) -> FindMessagesResponse:
    request = FindMessagesRequest(stream_id=broker.stream_id("s"), which="last_of_each", subjects=subjects)
    return broker.ask(request, FindMessagesResponse)


def publish(broker: Broker, subject: str, headers: bytes | None = None) -> str:
    broker.acks.clear()
    broker.deliver([(subject.encode(), b"r.0", headers, b"v")])
    (ack,) = broker.acks
    return ack.body["error"]["description"] if ack.err_code else str(ack.body["seq"])


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_look_up_before_the_first_message_leaves_limits_by_subject_as_they_are(most: int, refuses: bool) -> None:
    broker = Broker().start()
    broker.create(
        "s", subject="s.>", discard=Discard.NEW, max_messages=4, max_messages_per_subject=most,
        discard_new_per_subject=refuses,
    )  # fmt: skip
    for _ in range(most):
        publish(broker, "s.a")
    broker = broker.crash().start()
    broker.tick(1_000)
    look_up(broker, "s.a")
    last = publish(broker, "s.a")
    assert last == (FULL if refuses else str(most + 1))


def test_what_is_kept_holds_no_table_that_is_void() -> None:
    broker = Broker().start()
    broker.create("s", subject="s.>")
    publish(broker, "s.0")
    (partition,) = [one for one in broker.node._partitions.values() if one.stream.name == "s"]
    rows, tables = LastRows(), partition.budget.tables
    before = tables.slots
    for number in range(9):
        known = rows.known(partition, [f"s.{number}"], partition.visible_end)
        assert known is not None
        rows.keep(partition, known.lasts, partition.visible_end, {f"s.{number}": None})
        partition.hide(AppliedMarks(RowSet.of([number])))
        assert partition.lasts is None
        del known
    gc.collect()
    rows.known(partition, ["s.0"], partition.visible_end)
    assert tables.slots <= before + 2 * 64  # the present one, and the places that are known since it began


def test_what_is_kept_counts_the_header_block_of_its_answer() -> None:
    broker = Broker().start()
    broker.create("s", subject="s.>")
    headers = b"NATS/1.0\r\nX: %b\r\n\r\n" % (b"x" * 60_000)
    publish(broker, "s.0", headers)
    look_up(broker, "s.0")
    kept = broker.node.kept_lasts(broker.stream_id("s"), broker.clock.now)
    assert kept is not None
    one = kept.rows[b"s.0"]
    assert len(one.head(b"s")) > len(headers)
    assert one.size_bytes >= len(one.headers or b"") + len(one.value or b"") + len(one.head(b"s"))
