"""Publishers that expect a last sequence of their subject, against a list of what is stored: what they hear is true.

Through crashes, truncation, refused writes and appends over the socket; and with few subjects they always hear it.
"""

from __future__ import annotations

import errno
from typing import Any
from unittest.mock import patch

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.ids import Offset, PartitionId
from penstock.messages import AppendRequest, CreateStreamResponse, TruncateRequest
from penstock.vfs.faulty import FileFault, FileOperationKind, no_faults, nth
from penstock.vfs.memory import Keep
from tests.extent import examples
from tests.unit.node.harness import Ack, Broker, batch_of

SUBJECTS = ("s.a", "s.b", "s.c", "s." + 70 * "d")
EXACT, BEHIND, NOTHING_YET, UNASKED = range(4)
READ, READ_ON_A_FULL_DISK, APPEND, CRASH, LOSE, TRUNCATE = range(6)
MESSAGES = st.lists(st.tuples(st.sampled_from(SUBJECTS), st.integers(EXACT, UNASKED)), min_size=1, max_size=6)
ACTS = st.lists(st.tuples(st.integers(READ, TRUNCATE), MESSAGES, st.integers(0, 30)), min_size=1, max_size=25)


class Model:
    """What is stored: the subject of each offset, and where the log begins."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.log_start = 0

    def last(self, subject: str, more: list[str]) -> int:
        """The sequence of the last message on a subject, behind which `more` comes."""
        log = self.log + more
        return max((n + 1 for n, one in enumerate(log) if one == subject and n >= self.log_start), default=0)


def published(broker: Broker, model: Model, messages: list[tuple[str, int]], *, is_full: bool) -> None:
    """One read with these messages: what is acked is stored, and what is refused was wrong."""
    sent: list[Any] = []
    stored: list[str] = []
    acked: list[Ack] = []
    expectations: list[int | None] = []
    for n, (subject, kind) in enumerate(messages):
        last = model.last(subject, [one for one, _ in messages[:n]] if kind == EXACT else [])
        expected = {EXACT: last, BEHIND: max(last - 1, 0), NOTHING_YET: 0}.get(kind)
        expectations.append(expected)
        line = b"" if expected is None else b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % expected
        sent.append((subject.encode(), b"r%d" % n, b"NATS/1.0\r\n%b\r\n" % line, b"v"))
    seen = len(broker.acks)
    broker.deliver(sent)
    heard = {ack.reply: ack for ack in broker.acks[seen:]}
    for n, (subject, _) in enumerate(messages):
        ack, last, expected = heard[f"r{n}"], model.last(subject, stored), expectations[n]
        if ack.err_code == 10071:
            assert expected not in (None, last)
            assert ack.body["error"]["description"] == f"wrong last sequence: {last}"
        else:
            assert expected in (None, last), (subject, ack)
            stored.append(subject)
            acked.append(ack)
    if is_full:
        assert {ack.err_code for ack in acked} <= {10077}
    else:
        assert [ack.body["seq"] for ack in acked] == [len(model.log) + n + 1 for n in range(len(acked))]
        model.log += stored


def go_through(acts: list[Any]) -> None:
    """Do all that, and see that it is true."""
    broker, model = Broker().start(), Model()
    broker.answer(broker.create("s", segment_bytes=4096, dedup_window_ms=None), CreateStreamResponse)
    for act, messages, number in acts:
        if act in (READ, READ_ON_A_FULL_DISK):
            if is_full := act == READ_ON_A_FULL_DISK:
                broker.vfs.plan = nth(0, FileFault(errno.ENOSPC), FileOperationKind.WRITE, path_end=".arrows")
            published(broker, model, messages, is_full=is_full)
            broker.vfs.plan = no_faults
        elif act == APPEND:
            subjects = [subject for subject, _ in messages]
            batch = batch_of([(subject, None, b"v", None) for subject in subjects])
            broker.request(AppendRequest(stream_id=broker.stream_id("s")), batch)
            model.log += subjects
        elif act in (CRASH, LOSE):
            broker = broker.crash(Keep.ALL if act == CRASH else Keep.SYNCED).start()
        else:
            before = min(number, len(model.log))
            request = TruncateRequest(stream_id=broker.stream_id("s"), partition=PartitionId(0), before=Offset(before))
            broker.request(request)
            broker.tick(100)
            model.log_start = max(model.log_start, before)
        assert [row.subject for row in broker.read("s")] == model.log[model.log_start :]


@given(ACTS)
@settings(max_examples=examples(60), deadline=None)
def test_every_answer_is_that_of_the_list(acts: list[Any]) -> None:
    go_through(acts)


@given(ACTS, st.integers(1, 6))
@settings(max_examples=examples(60), deadline=None)
def test_so_is_what_has_to_be_searched(acts: list[Any], subjects_max: int) -> None:
    with (
        patch.object(limits, "SUBJECT_TABLE_MAX", subjects_max),
        patch.object(limits, "LAST_SEARCH_BYTES_MAX", 1),
    ):
        go_through(acts)
