"""Whatever publishers send, each message becomes a row, an error, or a count; and the batch of it is sound Arrow."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.config import Acks, StreamConfig
from penstock.base.subjects import subject_mistake
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup
from penstock.hot.message_ids import MessageIds
from penstock.ingest import acks
from penstock.ingest.admission import Admission, AdmissionRules, admit, refuse_all
from tests import groups
from tests.extent import each_change, examples
from tests.unit.node.harness import parse_acks

LIMIT = 300
LINES = st.sampled_from(
    [
        b"Penstock-Key: k",
        b"Penstock-Key-Base64: AP8=",
        b"Penstock-Key-Base64: ?",
        b"Penstock-Tombstone: 1",
        b"Penstock-Ack: none",
        b"Penstock-Ack: leader",
        b"Penstock-Ack: all",
        b"Penstock-Ack: \xff",
        b"Nats-Expected-Stream: orders",
        b"Nats-Expected-Stream: other",
        b"Nats-Expected-Last-Sequence: 7",
        b"Nats-Expected-Last-Sequence: 8",
        b"Nats-Expected-Last-Sequence: \xb2",
        b"Nats-TTL: 1",
        b"A: 1",
        b":",
    ]
)
BLOCKS = (
    st.none()
    | st.binary(max_size=60)
    | st.lists(LINES | st.binary(max_size=20), max_size=4).map(
        lambda lines: b"NATS/1.0\r\n" + b"".join(line + b"\r\n" for line in lines) + b"\r\n"
    )
)
SUBJECTS = st.sampled_from([b"orders.a", b"orders.*", "orders.ü".encode(), b"$JS.API.x", b"_INBOX.a"]) | st.binary(
    min_size=1, max_size=9
)
MESSAGES = st.lists(
    st.tuples(SUBJECTS, st.none() | st.integers(0, 99), BLOCKS, st.binary(max_size=9) | st.just(bytes(LIMIT + 1))),
    max_size=12,
)
RULES = st.sampled_from(
    [
        AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", max_message_bytes=LIMIT)),
        AdmissionRules.of(StreamConfig(name="orders", subject=">", acks=Acks.NEVER, max_message_bytes=LIMIT)),
    ]
)
Message = tuple[bytes, int | None, bytes | None, bytes]


def group_of(messages: list[Message]) -> MessageGroup:
    return groups.group_of(
        [
            (subject, None if reply is None else f"r{number}".encode(), block, value)
            for number, (subject, reply, block, value) in enumerate(messages)
        ]
    )


def answered(admission: Admission) -> list[str]:
    """The reply subjects that hear an ack or an error, at once or once it is certain."""
    rows = [reply.decode() for reply in groups.replies(admission.rows) if reply is not None]
    return rows + [ack.reply for error in (*admission.errors, admission.denials) for ack in parse_acks(error)]


@each_change
@given(MESSAGES, RULES, st.integers(0, 9))
@settings(max_examples=examples(400))
def test_nothing_disappears(messages: list[Message], rules: AdmissionRules, log_end: int) -> None:
    group = group_of(messages)
    admission = admit(group, rules, log_end=log_end)
    if admission.needs_ids:  # nothing is decided yet
        admission = admit(group, rules, log_end=log_end, ids=MessageIds(9))
    kept = len(admission.rows) + len(admission.duplicates)
    assert kept + sum(admission.dropped.values()) == len(messages)
    heard = answered(admission)
    assert len(set(heard)) == len(heard)
    assert all(subject_mistake(subject.decode()) is None for subject in groups.subjects(admission.rows))
    assert set(heard) <= {reply.decode() for reply in groups.replies(group) if reply is not None}
    assert rules.acks_replies or not heard
    assert groups.early(admission.rows) <= set(range(len(admission.rows)))
    if len(admission.rows):
        count = len(admission.rows)
        data, _ = codec.encode(admission.rows, 0, count, base_offset=log_end, timestamp_us=1, leader_epoch=1)
        codec.verify(data)
        rows = codec.check_rows(data)
        assert [subject.encode() for subject in rows.column("subject").to_pylist()] == groups.subjects(admission.rows)
        assert all(len(value or b"") <= LIMIT for value in rows.column("value").to_pylist())


@given(MESSAGES, RULES, st.integers(0, 9))
def test_rows_keep_the_order_of_the_wire(messages: list[Message], rules: AdmissionRules, log_end: int) -> None:
    numbered = [(s, r, b, v + b"#%d" % n if len(v) < LIMIT else v) for n, (s, r, b, v) in enumerate(messages)]
    admission = admit(group_of(numbered), rules, log_end=log_end)
    numbers = [int(value.rpartition(b"#")[2]) for value in groups.values(admission.rows) if value is not None]
    assert numbers == sorted(set(numbers))


@given(MESSAGES, RULES)
def test_refusing_all_tells_the_same_ones(messages: list[Message], rules: AdmissionRules) -> None:
    group = group_of(messages)
    refused = refuse_all(group, rules, acks.unavailable("busy"), "over_budget")
    assert len(refused.rows) == 0
    assert sum(refused.dropped.values()) == len(messages)
    heard = set(answered(refused))
    assert set(answered(admit(group, rules, log_end=7))) <= heard
    assert heard <= {reply.decode() for reply in groups.replies(group) if reply is not None}
