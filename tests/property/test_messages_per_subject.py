"""Streams that refuse what is beyond a limit by subject, or take it in place of an older message, against lists.

Reads, batches, rollups, deletions, truncations, writes that fail, restarts, look-ups and other limits; what is beyond
the limits of the whole stream is refused as by nats-server 2.15.1.
"""

from __future__ import annotations

import errno
from typing import NamedTuple
from unittest.mock import patch

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.config import Discard
from penstock.base.ids import Offset, PartitionId
from penstock.batch import codec
from penstock.messages import (
    AlterStreamRequest,
    AlterStreamResponse,
    AppendRequest,
    AppendResponse,
    DeleteMessagesRequest,
    FindMessagesRequest,
    FindMessagesResponse,
    TruncateRequest,
    TruncateResponse,
)
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from tests.extent import examples
from tests.unit.node.harness import Broker, batch_of

NAMES = "abcdef"
_OFTEN = ("read", "append")
ACTS = st.lists(
    st.tuples(
        st.sampled_from([*_OFTEN, *_OFTEN, "sub", "all", "delete", "failed", "restart", "truncate", "look", "alter"]),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=6),
        st.integers(0, 40),
    ),
    min_size=5,
    max_size=40,
)


class Rules(NamedTuple):
    """Limits of a stream."""

    most: int = 1  # of each subject
    refuses: bool = True  # what is beyond it
    rows_max: int = limits.OFFSET_MAX


RULES = st.builds(Rules, st.integers(1, 3), st.booleans(), st.sampled_from([3, 5, limits.OFFSET_MAX]))


class Model:
    """The messages that are left of each subject."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.live: dict[str, list[int]] = {}
        self.end = 0

    def takes(self, name: str, rollup: str = "") -> bool:
        """Take a message, or refuse it."""
        rules, own = self.rules, self.live.setdefault(name, [])
        is_at_limit = len(own) >= rules.most
        if rules.refuses and is_at_limit and not rollup:
            return False
        if sum(map(len, self.live.values())) >= rules.rows_max and not is_at_limit:
            return False
        if rollup == "all":
            self.live.clear()
        if rollup:
            own = self.live[name] = []
        own.append(self.end)
        self.end += 1
        del own[: -rules.most]
        return True


@given(RULES, ACTS, st.sampled_from([2, 4, limits.SUBJECT_TABLE_MAX]))
@example(Rules(2), [("read", ["a", "a"], 0), ("sub", ["a"], 0), ("read", ["a", "a"], 0)], limits.SUBJECT_TABLE_MAX)
@example(Rules(2, refuses=False, rows_max=3), [("read", [*"aab"], 0), ("append", [*"aa"], 0)], limits.SUBJECT_TABLE_MAX)
@settings(max_examples=examples(300), deadline=None)
def test_a_subject_has_no_more_messages_than_it_may(
    rules: Rules, acts: list[tuple[str, list[str], int]], subjects_max: int
) -> None:
    with patch.object(limits, "SUBJECT_TABLE_MAX", subjects_max):
        run(rules, acts)


def run(rules: Rules, acts: list[tuple[str, list[str], int]]) -> None:
    broker = Broker().start()
    broker.create(
        "orders",
        segment_bytes=4096,
        discard=Discard.NEW,
        max_messages_per_subject=rules.most,
        allow_rollup=True,
        **({"discard_new_per_subject": True} if rules.refuses else {}),  # type: ignore[arg-type]
        **({"max_messages": rules.rows_max} if rules.rows_max < limits.OFFSET_MAX else {}),  # type: ignore[arg-type]
    )
    model = Model(rules)
    for act, names, number in acts:
        stream_id = broker.stream_id("orders")
        if act in ("read", "failed", "sub", "all"):
            kind = act if act in ("sub", "all") else ""
            headers = f"NATS/1.0\r\nNats-Rollup: {kind}\r\n\r\n".encode() if kind else None
            sent = names[:1] if kind else names
            broker.acks.clear()
            if act == "failed":
                broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
            broker.deliver(
                [(f"orders.{name}".encode(), b"r.%d" % n, headers, b"." * 300) for n, name in enumerate(sent)]
            )
            broker.tick(1_000)
            broker.vfs.plan = no_faults
            acks = sorted(broker.acks, key=lambda ack: int(ack.reply.partition(".")[2]))
            stored = [not ack.err_code for ack in acks]
            wanted = [act != "failed" and model.takes(name, kind) for name in sent]
            assert stored == wanted, (act, sent, model.live)
        elif act == "append":
            request = AppendRequest(stream_id=stream_id, partition=PartitionId(0))
            rows = batch_of([(f"orders.{name}", None, b"." * 300, None) for name in names])
            response = broker.replies[broker.request(request, rows)].response
            after = Model(model.rules)
            after.live, after.end = {name: [*own] for name, own in model.live.items()}, model.end
            is_whole = all(after.takes(name) for name in names)
            assert isinstance(response, AppendResponse) == is_whole, (names, model.live, response)
            model = after if is_whole else model
        elif act == "delete" and (offsets := sorted(one for own in model.live.values() for one in own)):
            offset = offsets[number % len(offsets)]
            broker.request(DeleteMessagesRequest(stream_id=stream_id, offsets=(Offset(offset),)))
            model.live = {name: [one for one in own if one != offset] for name, own in model.live.items()}
        elif act == "truncate":
            before = min(number, model.end)
            broker.ask(TruncateRequest(stream_id=stream_id, before=Offset(before)), TruncateResponse)
            model.live = {name: [one for one in own if one >= before] for name, own in model.live.items()}
        elif act == "alter":
            model.rules = rules = rules._replace(most=1 + number % 3)
            changes = {"max_messages_per_subject": rules.most}
            broker.ask(AlterStreamRequest(name="orders", changes=changes), AlterStreamResponse)
            if not rules.refuses:
                model.live = {name: own[-rules.most :] for name, own in model.live.items()}
        elif act == "look":
            expected = {f"orders.{name}": model.live.get(name, [])[-1:] for name in names}
            find = FindMessagesRequest(stream_id=stream_id, subjects=tuple(expected), which="last_of_each", limit=6)
            caller = broker.request(find)
            assert broker.answer(caller, FindMessagesResponse).messages == sum(map(len, expected.values()))
            rows = codec.check_rows(broker.payloads[caller]).to_pylist() if caller in broker.payloads else []
            assert [row["offset"] for row in rows] == sorted(one for last in expected.values() for one in last)
        elif act == "restart":
            broker.tick(1_000)
            broker = broker.crash().start()
        broker.tick(1_000)
        left: dict[str, list[int]] = {}
        for row in broker.read("orders"):
            left.setdefault(row.subject[-1], []).append(row.offset)
        assert left == {name: own for name, own in model.live.items() if own}, (act, names)
