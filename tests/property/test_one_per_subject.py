"""A stream that refuses a second message of a subject, against a list: reads, batches, deletions and restarts."""

from __future__ import annotations

import errno
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.config import Discard
from penstock.base.ids import Offset, PartitionId
from penstock.messages import AppendRequest, AppendResponse, DeleteMessagesRequest, TruncateRequest, TruncateResponse
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from tests.extent import examples
from tests.unit.node.harness import Broker, batch_of

NAMES = "abcdefgh"
ACTS = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "append", "append", "delete", "failed", "restart", "truncate"]),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=5),
        st.integers(0, 40),
    ),
    max_size=25,
)


@given(ACTS, st.sampled_from([2, 4, limits.SUBJECT_TABLE_MAX]))
@settings(max_examples=examples(40), deadline=None)
def test_what_is_stored_is_the_first_message_of_each_subject(
    acts: list[tuple[str, list[str], int]], subjects_max: int
) -> None:
    with patch.object(limits, "SUBJECT_TABLE_MAX", subjects_max):
        run(acts)


def run(acts: list[tuple[str, list[str], int]]) -> None:
    broker = Broker().start()
    broker.create(
        "orders", segment_bytes=4096, discard=Discard.NEW, max_messages_per_subject=1, discard_new_per_subject=True
    )
    live: dict[str, int] = {}
    end = 0
    for act, names, number in acts:
        stream_id = broker.stream_id("orders")
        if act in ("read", "failed"):
            broker.acks.clear()
            if act == "failed":
                broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
            sent = [(f"orders.{name}".encode(), b"r.%d" % n, None, b"." * 300) for n, name in enumerate(names)]
            broker.deliver(sent)  # type: ignore[arg-type]
            broker.vfs.plan = no_faults
            acks = sorted(broker.acks, key=lambda ack: int(ack.reply.partition(".")[2]))
            stored = [not ack.err_code for ack in acks]
            for name, is_stored in zip(names, stored, strict=True):
                assert is_stored == (name not in live and act == "read"), (name, live)
                if is_stored:
                    live[name], end = end, end + 1
        elif act == "append":
            request = AppendRequest(stream_id=stream_id, partition=PartitionId(0))
            rows = batch_of([(f"orders.{name}", None, b"." * 300, None) for name in names])
            response = broker.replies[broker.request(request, rows)].response
            is_free = len(set(names)) == len(names) and not live.keys() & set(names)
            assert isinstance(response, AppendResponse) == is_free, (names, live, response)
            if is_free:
                live |= {name: end + at for at, name in enumerate(names)}
                end += len(names)
        elif act == "delete" and live:
            name = sorted(live)[number % len(live)]
            broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(live.pop(name)),)))
            broker.tick(1_000)
        elif act == "truncate":
            before = min(number, end)
            broker.ask(TruncateRequest(stream_id=stream_id, before=Offset(before)), TruncateResponse)
            live = {name: offset for name, offset in live.items() if offset >= before}
        elif act == "restart":
            broker.tick(1_000)
            broker = broker.crash().start()
            broker.tick(1_000)
        assert {row.subject[-1]: row.offset for row in broker.read("orders")} == live
