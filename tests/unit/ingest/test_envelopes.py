"""Messages in an envelope: what becomes a row, what is refused, and Liftbridge's ack of both."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.config import Acks, StreamConfig
from penstock.hot import envelope_acks
from penstock.ingest import acks
from penstock.ingest.admission import OTHER_STREAM, REFUSED, Admission, AdmissionRules, admit, refuse_all
from penstock.messages.streams import UNMET_EXPECTATION
from tests import groups
from tests.envelopes import INCORRECT_OFFSET, TOO_LARGE, UNKNOWN, bytes_field, enveloped, message
from tests.unit.node.harness import Ack, parse_acks

CONFIG = StreamConfig(name="orders", subject="orders.>", max_message_bytes=1_000)
RULES = AdmissionRules.of(CONFIG)
LEADER, ALL, NONE = range(3)


def admitted(
    fields: dict[str, Any] | bytes,
    *entries: tuple[bytes, bytes],
    block: bytes | None = None,
    reply: bytes | None = b"r",
    rules: AdmissionRules = RULES,
    log_end: int = 7,
) -> Admission:
    """What becomes of one message in an envelope, beside one without."""
    value = fields if isinstance(fields, bytes) else enveloped(message(fields, entries))
    messages = [(b"orders.a", reply, block, value), (b"orders.b", b"plain", None, b"v")]
    return admit(groups.group_of(messages), rules, log_end=log_end)


def waiting(admission: Admission, *, early: bool = False, tail: bytes = b"") -> list[Ack]:
    """The acks of envelopes that come when all rows are committed, or as soon as they are written."""
    rows = admission.rows
    records = envelope_acks.waiting(rows, 0, len(rows), early)
    found = parse_acks(envelope_acks.acks(records, RULES.ack_head, 7, 1_000_000, tail))
    assert len(found) == envelope_acks.waiting_count(records)
    return found


def stored(admission: Admission) -> tuple[bytes | None, bytes | None, bytes | None]:
    """Key, value and headers of the row that came in an envelope."""
    assert len(admission.rows) == 2
    assert not admission.dropped
    assert groups.replies(admission.rows)[1] == b"plain" or admission.rows.reply(1) is None
    return admission.rows.key(0), admission.rows.value(0), admission.rows.headers(0)


def refusal(admission: Admission) -> Ack:
    assert groups.values(admission.rows) == [b"v"]
    (ack,) = [ack for error in (*admission.errors, admission.denials) for ack in parse_acks(error)]
    assert admission.dropped == {UNMET_EXPECTATION if ack.err_code in (10070, 10071) else REFUSED: 1}
    return ack


def lines(*texts: bytes) -> bytes:
    return b"\r\n".join([b"NATS/1.0", *texts, b"", b""])


def test_what_stands_in_an_envelope_is_stored_without_it() -> None:
    admission = admitted({"key": b"\x00\xff", "value": b"hello"}, (b"Trace", b"7"), (b"B", b""))
    assert stored(admission) == (b"\x00\xff", b"hello", lines(b"Trace: 7", b"B: "))
    assert admission.rows.subject(0) == b"orders.a"
    assert (admission.rows.value(1), admission.rows.headers(1), admission.rows.key(1)) == (b"v", None, None)


def test_what_is_missing_is_empty_or_not_there() -> None:
    assert stored(admitted({})) == (None, b"", None)
    assert stored(admitted({"key": b"", "value": b""})) == (None, b"", None)


def test_what_the_publisher_says_of_the_broker_is_not_believed() -> None:
    told = {"stream": b"other", "subject": b"orders.z", "reply": b"z", "partition": 9, "timestamp": 1}
    admission = admitted(told | {"value": b"x"})
    assert stored(admission) == (None, b"x", None)
    assert admission.rows.subject(0) == b"orders.a"
    assert [ack.reply for ack in waiting(admission, early=True)] == ["r"]


@pytest.mark.parametrize("crc", [False, True])
def test_a_checksum_is_looked_at(crc: bool) -> None:
    data = enveloped(message({"value": b"x"}), crc=crc)
    assert stored(admitted(data))[1] == b"x"
    flipped = data[:-1] + b"y"
    assert stored(admitted(flipped))[1] == (flipped if crc else b"y")


@pytest.mark.parametrize(
    "value",
    [
        bytes.fromhex("b90e43b400ff0000"),  # the header says that it is 255 bytes long, and ends after 8
        bytes.fromhex("b90e43b4"),
        bytes.fromhex("b90e43b400080001"),  # an ack
        bytes.fromhex("b90e43b400080000ff"),
        enveloped(bytes_field(11, b"\xff")),
        enveloped(message({"value": b"x"}))[:-1],
    ],
)
def test_a_cookie_by_coincidence_is_a_plain_message(value: bytes) -> None:
    admission = admitted(value)
    assert stored(admission) == (None, value, None)
    assert groups.replies(admission.rows) == [b"r", b"plain"]
    assert not waiting(admission)
    assert not waiting(admission, early=True)


def test_headers_that_came_beside_it_stand_first_and_count_first() -> None:
    block = lines(b"A: 1", b"Penstock-Key: beside")
    admission = admitted({"key": b"inside", "value": b"x"}, (b"A", b"2"), (b"Penstock-Key", b"entry"), block=block)
    merged = lines(b"A: 1", b"Penstock-Key: beside", b"A: 2", b"Penstock-Key: entry")
    assert stored(admission) == (b"beside", b"x", merged)
    assert stored(admitted({"key": b"inside"}, (b"Penstock-Key", b"entry")))[0] == b"entry"
    assert stored(admitted({"key": b"inside"}, block=lines(b"A: 1"))) == (b"inside", b"", lines(b"A: 1"))


@pytest.mark.parametrize(
    ("block", "merged"),
    [
        (b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0\r\nX: 0\r\n\r\nrest", b"NATS/1.0\r\nX: 0\r\nA: 1\r\n\r\nrest"),
        (b"NATS/1.0\r\nX: 0\r\n", b"NATS/1.0\r\nX: 0\r\nA: 1\r\n\r\n"),
        (b"NATS/1.0\r\nX: 0", b"NATS/1.0\r\nX: 0\r\nA: 1\r\n\r\n"),
        (b"", b"\r\nA: 1\r\n\r\n"),
    ],
)
def test_entries_stand_before_the_blank_line(block: bytes, merged: bytes) -> None:
    assert stored(admitted({}, (b"A", b"1"), block=block))[2] == merged


def test_of_a_name_that_comes_twice_the_last_value_counts() -> None:
    entries = ((b"A", b"1"), (b"B", b"2"), (b"A", b"3"))
    assert stored(admitted({}, *entries))[2] == lines(b"A: 3", b"B: 2")


def test_a_header_in_an_envelope_does_what_it_does_beside_it() -> None:
    assert stored(admitted({"key": b"k"}, (b"Penstock-Tombstone", b"1")))[:2] == (b"k", None)
    assert refusal(admitted({}, (b"Nats-Expected-Last-Sequence", b"6"))).err_code == 10071
    assert (
        "does not support Nats-Schedule" in refusal(admitted({}, (b"Nats-Schedule", b"1"))).body["error"]["description"]
    )
    assert refusal(admitted({}, (b"Nats-Incr", b"1"))).err_code == 10168
    assert refusal(admitted({}, (b"Nats-Batch-Id", b"1"))).err_code == 10174
    elsewhere = admitted({}, (b"Nats-Expected-Stream", b"other"))
    assert elsewhere.dropped == {OTHER_STREAM: 1}
    assert not elsewhere.errors


@pytest.mark.parametrize(
    "entry",
    [
        (b"", b"v"),
        (b"A B", b"v"),
        (b"A:", b"v"),
        (b"A\r\nB", b"v"),
        ("ä".encode(), b"v"),
        (b"A", b"1\r\nPenstock-Key: forged"),
        (b"A", b"1\n"),
        (b"A", b"\0"),
        (b"A", b" v"),
        (b"A", b"v\t"),
    ],
)
def test_what_cannot_stand_in_a_header_block_is_refused(entry: tuple[bytes, bytes]) -> None:
    ack = refusal(admitted({"value": b"x", "correlation_id": b"c"}, (b"Fine", b"1"), entry))
    assert "a header of the envelope cannot be one" in ack.body["error"]["description"]
    assert (ack.body["ack_error"], ack.body["correlation_id"]) == (UNKNOWN, "c")


# Acks


def test_the_bytes_of_an_ack() -> None:
    fields = {"correlation_id": b"c-1", "ack_inbox": b"_INBOX.me", "ack_policy": ALL}
    admission = admitted(fields)
    records = envelope_acks.waiting(admission.rows, 0, 2, False)
    tail = envelope_acks.standing_tail(0, 3, 1, True)
    body = bytes.fromhex(
        "b90e43b400080001"
        "0a066f7264657273"  # stream: orders
        "12086f72646572732e3e"  # partition subject: orders.>
        "1a086f72646572732e61"  # message subject: orders.a
        "2007"  # offset 7
        "2a095f494e424f582e6d65"  # ack inbox
        "3203632d31"  # correlation id
        "3801"  # policy: all
        "4080a8d6b907"  # received at 2 s
        "c83e03d03e01d83e01"  # leader epoch 3, 1 replica, fsynced
    )
    found = envelope_acks.acks(records, RULES.ack_head, 7, 2_000_000, tail)
    assert found == b"PUB _INBOX.me %d\r\n%b\r\n" % (len(body), body)


@pytest.mark.parametrize(("policy", "early", "late"), [(LEADER, 1, 0), (ALL, 0, 1), (NONE, 0, 0)])
def test_the_policy_says_when_the_ack_comes(policy: int, early: int, late: int) -> None:
    admission = admitted({"ack_policy": policy})
    assert len(waiting(admission, early=True)) == early
    assert len(waiting(admission)) == late
    assert groups.replies(admission.rows) == [None, b"plain"]


def test_a_header_counts_before_the_policy() -> None:
    admission = admitted({"ack_policy": LEADER}, block=lines(b"Penstock-Ack: all"))
    assert [ack.body.get("ack_policy", LEADER) for ack in waiting(admission)] == [LEADER]
    assert not waiting(admitted({"ack_policy": ALL}, block=lines(b"Penstock-Ack: none")))


def test_the_ack_goes_to_the_inbox_or_else_to_the_reply_subject() -> None:
    (inbox,) = waiting(admitted({"ack_inbox": b"acks.me"}), early=True)
    assert (inbox.reply, inbox.body["ack_inbox"]) == ("acks.me", "acks.me")
    (inbox,) = waiting(admitted({"ack_inbox": b"acks.me"}, reply=None), early=True)
    assert inbox.reply == "acks.me"
    (reply,) = waiting(admitted({"ack_inbox": b""}), early=True)
    assert reply.reply == "r"
    assert "ack_inbox" not in reply.body
    assert not waiting(admitted({}, reply=None), early=True)


HOSTILE_INBOXES = [
    b"a b",
    b"a\r\nPUB evil 0\r\n\r\n",
    b"a.*",
    b">",
    b"a..b",
    b".",
    b"$SYS.REQ.SERVER.PING",
    b"$JS.API.STREAM.DELETE.x",
    b"a" * (limits.SUBJECT_BYTES_MAX + 1),
]


@pytest.mark.parametrize("inbox", HOSTILE_INBOXES)
def test_an_inbox_that_is_no_subject_is_refused(inbox: bytes) -> None:
    ack = refusal(admitted({"ack_inbox": inbox, "value": b"x"}))
    assert ack.reply == "r"
    assert "ack_inbox" in ack.body["error"]["description"]
    silent = admitted({"ack_inbox": inbox, "value": b"x"}, reply=None)
    assert silent.dropped == {REFUSED: 1}
    assert not silent.errors


def test_a_correlation_id_is_bounded() -> None:
    most = b"c" * limits.CORRELATION_ID_BYTES_MAX
    (ack,) = waiting(admitted({"correlation_id": most}), early=True)
    assert ack.body["correlation_id"] == most.decode()
    refused = refusal(admitted({"correlation_id": most + b"c"}))
    assert "correlation_id" not in refused.body
    assert "correlation_id" in refused.body["error"]["description"]


@pytest.mark.parametrize("policy", [3, -1, 2**31 - 1])
def test_a_policy_that_does_not_exist_is_refused(policy: int) -> None:
    assert "ack_policy" in refusal(admitted({"ack_policy": policy})).body["error"]["description"]


@pytest.mark.parametrize(
    ("mode", "enveloped_acked", "plain_acked"),
    [(Acks.REPLY, True, True), (Acks.ENVELOPE, True, False), (Acks.NEVER, False, False)],
)
def test_who_is_acked(mode: Acks, enveloped_acked: bool, plain_acked: bool) -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", acks=mode, max_message_bytes=1_000))
    admission = admitted({"ack_policy": ALL, "value": b"x"}, rules=rules)
    assert stored(admission)[1] == b"x"
    assert bool(waiting(admission)) is enveloped_acked
    assert groups.replies(admission.rows) == [None, b"plain" if plain_acked else None]
    refused = admitted({"ack_policy": 3}, rules=rules)
    assert refused.dropped == {REFUSED: 1}
    assert bool(refused.errors) is enveloped_acked


# Checks


@pytest.mark.parametrize("offset", [None, 7, -1, -(2**63)])
def test_the_expected_offset_is_the_next_one_or_none(offset: int | None) -> None:
    fields = {} if offset is None else {"offset": offset}
    assert stored(admitted(fields)) == (None, b"", None)


@pytest.mark.parametrize("offset", [0, 6, 8, 2**63 - 1])
def test_another_expected_offset_is_refused(offset: int) -> None:
    ack = refusal(admitted({"offset": offset, "correlation_id": b"c", "ack_inbox": b"acks.me"}))
    assert ack.reply == "acks.me"
    assert ack.err_code == 10071
    assert ack.body["error"]["description"] == "wrong last sequence: 7"
    assert ack.body["ack_error"] == INCORRECT_OFFSET
    assert "offset" not in ack.body
    assert (ack.body["stream"], ack.body["partition_subject"]) == ("orders", "orders.>")
    assert (ack.body["msg_subject"], ack.body["correlation_id"]) == ("orders.a", "c")


def test_offset_0_can_be_expected() -> None:
    assert stored(admitted({"offset": 0}, log_end=0))[1] == b""


def test_the_expected_offset_counts_what_was_stored_before_it_in_the_same_read() -> None:
    values = [enveloped(message({"offset": offset})) for offset in (5, 6, 6, 7)]
    group = groups.group_of([(b"orders.a", b"r", None, value) for value in values])
    admission = admit(group, RULES, log_end=5)
    assert len(admission.rows) == 3
    assert admission.dropped == {UNMET_EXPECTATION: 1}


def test_sizes_count_what_is_stored() -> None:
    fits = {"value": b"v" * 900, "key": b"k" * 60}
    entry = (b"A", b"b" * 15)
    block = len(lines(b"A: " + b"b" * 15))
    assert 960 + block == 992
    assert stored(admitted(fits, entry))[1] == b"v" * 900
    ack = refusal(admitted(fits | {"key": b"k" * 69}, entry))
    assert (ack.err_code, ack.body["ack_error"]) == (10054, TOO_LARGE)
    assert "1001 bytes" in ack.body["error"]["description"]
    large = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>"))
    ack = refusal(admitted({"key": b"k" * (limits.KEY_BYTES_MAX + 1)}, rules=large))
    assert (ack.err_code, ack.body["ack_error"]) == (10003, TOO_LARGE)
    ack = refusal(admitted({}, (b"A", b"b" * limits.HEADER_BLOCK_BYTES_MAX), rules=large))
    assert (ack.err_code, ack.body["ack_error"]) == (10097, TOO_LARGE)


def test_all_that_is_refused_at_once_hears_of_it() -> None:
    group = groups.group_of(
        [
            (b"orders.a", b"r", None, enveloped(message({"ack_inbox": b"acks.me", "correlation_id": b"c"}))),
            (b"orders.b", b"plain", None, b"v"),
            (b"orders.a", b"s", None, enveloped(message({"ack_policy": NONE}))),
        ]
    )
    admission = refuse_all(group, RULES, acks.unavailable("busy"), "over_budget")
    assert len(admission.rows) == 0
    assert admission.dropped == {"over_budget": 3}
    first, second = [ack for error in (*admission.errors, admission.denials) for ack in parse_acks(error)]
    assert (first.reply, first.err_code, first.body["ack_error"]) == ("acks.me", 10008, UNKNOWN)
    assert (second.reply, second.err_code) == ("plain", 10008)
    assert "ack_error" not in second.body


@pytest.mark.parametrize(
    "fields",
    [{}, {"ack_policy": 3}, {"ack_inbox": b"a"}, {"correlation_id": b"c" * 1024, "offset": 9}, {"value": b"v" * 1_001}],
)
def test_refusals_are_bounded_by_what_they_refuse(fields: dict[str, Any]) -> None:
    rules = AdmissionRules.of(StreamConfig(name="n" * limits.STREAM_NAME_CHARS_MAX, subject=">", acks=Acks.ENVELOPE))
    value = enveloped(message(fields))
    group = groups.group_of([(b"o", b"r", None, value)] * 100)
    wire_bytes = 100 * len(b"MSG o 1 r %d\r\n%b\r\n" % (len(value), value))
    closed = acks.store_failed("the stream is read_only; see its status")
    for admission in (admit(group, rules, log_end=0), refuse_all(group, rules, closed, "read_only")):
        answered_bytes = sum(map(len, (*admission.errors, admission.denials)))
        assert answered_bytes <= limits.REFUSALS_GROWTH_MAX * wire_bytes, answered_bytes / wire_bytes


# Who waits


def test_records_are_those_of_the_rows_that_were_asked_for() -> None:
    values = [enveloped(message({"ack_policy": ALL, "correlation_id": b"%d" % number})) for number in range(6)]
    values[2] = b"plain"
    group = groups.group_of([(b"orders.a", b"r", None, value) for value in values])
    rows = admit(group, RULES, log_end=0).rows
    records = envelope_acks.waiting(rows, 1, 5, False)
    found = parse_acks(envelope_acks.acks(records, RULES.ack_head, 101, 0, b""))
    assert [(ack.body["correlation_id"], ack.body["offset"]) for ack in found] == [("1", 101), ("3", 103), ("4", 104)]
    assert envelope_acks.waiting(rows, 2, 3, False) == b""
    with pytest.raises(IndexError):
        envelope_acks.waiting(rows, 0, 7, False)


def test_what_waits_is_small() -> None:
    correlation = b"0123456789abcdef0123456789abcdef0123"
    value = enveloped(message({"ack_policy": ALL, "correlation_id": correlation, "value": b"v" * 900}))
    rows = admit(groups.group_of([(b"orders.a", b"_INBOX.x.1", None, value)] * 100), RULES, log_end=0).rows
    kept = len(envelope_acks.waiting(rows, 0, 100, False)) / 100
    assert kept == 20 + len(correlation) + len(b"orders.a") + len(b"_INBOX.x.1")


@pytest.mark.parametrize("records", [b"\0", bytes(19), b"\xff" * 16 + bytes(4), bytes(4) + b"\1" + bytes(15)])
def test_bytes_that_are_no_record_are_an_error(records: bytes) -> None:
    for call in (
        lambda: envelope_acks.waiting_count(records),
        lambda: envelope_acks.acks(records, b"", 0, 0, b""),
        lambda: envelope_acks.refusals(records, b"", b""),
    ):
        with pytest.raises(IndexError):
            call()


def test_partitions_have_subjects_of_their_own() -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.eu", partitions=3), 2)
    assert rules.ack_head == envelope_acks.head(b"orders", b"orders.eu.2")
