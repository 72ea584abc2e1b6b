"""Which messages become rows, and what the others hear."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.config import Acks, StreamConfig
from penstock.hot.message_group import MessageGroup, TooLarge
from penstock.hot.message_ids import MessageIds
from penstock.ingest import acks
from penstock.ingest.admission import (
    OTHER_STREAM,
    REFUSED,
    RESERVED_SUBJECT,
    Admission,
    AdmissionRules,
    admit,
    refuse_all,
)
from penstock.ingest.last_sequences import UNREADABLE, LastSequences
from penstock.messages.streams import UNMET_EXPECTATION
from tests import groups
from tests.unit.node.harness import Ack, parse_acks

RULES = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", max_message_bytes=1_000))


def block(*lines: str) -> bytes:
    return ("NATS/1.0\r\n" + "".join(f"{line}\r\n" for line in lines) + "\r\n").encode()


def group(*messages: tuple[bytes, bytes | None, bytes | None, bytes]) -> MessageGroup:
    return groups.group_of(messages)


def one(*lines: str, value: bytes = b"v", reply: bytes | None = b"r", subject: bytes = b"orders.a") -> MessageGroup:
    return group((subject, reply, block(*lines) if lines else None, value))


def errors(admission: Admission) -> list[Ack]:
    return [ack for error in (*admission.errors, admission.denials) for ack in parse_acks(error)]


UNMET_CODES = (10070, 10071)  # wrong last message id, wrong last sequence


def refused_with(admission: Admission) -> int:
    (error,) = errors(admission)
    assert len(admission.rows) == 0
    assert admission.dropped == {UNMET_EXPECTATION if error.err_code in UNMET_CODES else REFUSED: 1}
    return error.err_code


def test_plain_messages_pass_as_they_are() -> None:
    messages = group((b"orders.a", b"r", None, b"1"), (b"orders.b", None, None, b""))
    admission = admit(messages, RULES, log_end=0)
    assert admission.rows is messages
    assert groups.keys(admission.rows) == groups.headers(admission.rows) == [None, None]
    assert groups.replies(admission.rows) == [b"r", None]
    assert not errors(admission)
    assert not admission.dropped


def test_empty_group() -> None:
    admission = admit(MessageGroup(b""), RULES, log_end=0)
    assert len(admission.rows) == 0


@pytest.mark.parametrize("mode", [Acks.NEVER, Acks.ENVELOPE])
@pytest.mark.parametrize("lines", [(), ("A: 1",), ("Penstock-Ack: bogus",)])
def test_replies_of_others_are_left_alone(mode: Acks, lines: tuple[str, ...]) -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", acks=mode))
    admission = admit(one(*lines), rules, log_end=0)
    assert groups.replies(admission.rows) in ([None], [])
    assert not errors(admission)


def test_headers_are_kept_and_foreign_ones_ignored() -> None:
    lines = ("penstock-key: a", "X-Penstock-Key: b", "nats-expected-stream: other")
    admission = admit(one(*lines), RULES, log_end=0)
    assert groups.headers(admission.rows) == [block(*lines)]
    assert groups.keys(admission.rows) == [None]


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        (("Penstock-Key: abc",), b"abc"),
        (("Penstock-Key:abc",), b"abc"),
        (("Penstock-Key:",), None),
        (("Penstock-Key:   ",), None),
        (("Penstock-Key-Base64:",), None),
        (("Penstock-Key:", "Penstock-Key-Base64: AP8="), b"\x00\xff"),
        (("Penstock-Key:", "Penstock-Key: second"), b"second"),
        (("Penstock-Key: first", "Penstock-Key: second"), b"first"),
        (("Penstock-Key-Base64: AP8=",), b"\x00\xff"),
        (("A: 1", "no colon here", "Penstock-Key: abc"), b"abc"),
    ],
)
def test_key(lines: tuple[str, ...], key: bytes) -> None:
    assert groups.keys(admit(one(*lines), RULES, log_end=0).rows) == [key]


@pytest.mark.parametrize("line", ["Penstock-Key-Base64: !!!", "Penstock-Key-Base64: abc"])
def test_bad_base64_is_refused(line: str) -> None:
    assert refused_with(admit(one(line), RULES, log_end=0)) == 10003


def test_long_key_is_refused() -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>"))
    longest = "k" * limits.KEY_BYTES_MAX
    assert len(admit(one(f"Penstock-Key: {longest}"), rules, log_end=0).rows) == 1
    assert refused_with(admit(one(f"Penstock-Key: {longest}k"), rules, log_end=0)) == 10003


def test_tombstone_needs_an_empty_payload() -> None:
    assert groups.values(admit(one("Penstock-Tombstone: 1", value=b""), RULES, log_end=0).rows) == [None]
    assert groups.values(admit(one("Penstock-Tombstone:"), RULES, log_end=0).rows) == [b"v"]
    for line, value in (("1", b"v"), ("true", b""), ("0", b""), ("01", b""), ("1", b"\0")):
        admission = admit(one(f"Penstock-Tombstone: {line}", value=value), RULES, log_end=0)
        assert refused_with(admission) == 10003, (line, value)
    assert groups.values(admit(one("A: 1", value=b""), RULES, log_end=0).rows) == [b""]


def test_ack_levels() -> None:
    messages = group(
        (b"orders.a", b"n", block("Penstock-Ack: none"), b"1"),
        (b"orders.a", b"l", block("Penstock-Ack: leader"), b"2"),
        (b"orders.a", b"a", block("Penstock-Ack: all"), b"3"),
        (b"orders.a", None, block("Penstock-Ack: leader"), b"4"),
    )
    admission = admit(messages, RULES, log_end=0)
    assert groups.replies(admission.rows) == [None, b"l", b"a", None]
    assert groups.early(admission.rows) == {1}


def test_unknown_ack_level_is_refused() -> None:
    assert refused_with(admit(one("Penstock-Ack: sometimes"), RULES, log_end=0)) == 10003


def test_another_stream_is_silent() -> None:
    admission = admit(one("Nats-Expected-Stream: other", "Nats-TTL: 1"), RULES, log_end=0)
    assert len(admission.rows) == 0
    assert not errors(admission)
    assert admission.dropped == {OTHER_STREAM: 1}
    assert admission.misaddressed == [(b"orders.a", b"r")]
    assert not admit(one("Nats-Expected-Stream: other", "Penstock-Ack: none"), RULES, log_end=0).misaddressed
    for name in ("orders", ""):  # an empty one is none, as in JetStream
        assert len(admit(one(f"Nats-Expected-Stream: {name}"), RULES, log_end=0).rows) == 1


def test_expected_last_sequence_counts_rows_of_the_same_group() -> None:
    def expecting(sequence: str) -> bytes:
        return block(f"Nats-Expected-Last-Sequence: {sequence}")

    messages = group(
        (b"orders.a", b"0", expecting("7"), b""),
        (b"orders.a", b"1", expecting("7"), b""),
        (b"orders.a", b"2", expecting("8"), b""),
        (b"orders.a", b"3", expecting("nine"), b""),
        (b"orders.a", b"4", expecting("-9"), b""),
        (b"orders.a", b"5", expecting("9" * 5_000), b""),
    )
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>"))
    admission = admit(messages, rules, log_end=7)
    assert groups.replies(admission.rows) == [b"0", b"2"]
    assert [(ack.reply, ack.err_code) for ack in errors(admission)] == [(r, 10071) for r in ("1", "3", "4", "5")]
    assert errors(admission)[0].body["error"]["description"] == "wrong last sequence: 8"


def test_zero_means_nothing_yet() -> None:
    assert len(admit(one("Nats-Expected-Last-Sequence: 0"), RULES, log_end=0).rows) == 1
    assert refused_with(admit(one("Nats-Expected-Last-Sequence: 0"), RULES, log_end=1)) == 10071


def expecting(sequence: str, *lines: str) -> bytes:
    """Headers of a message that wants this to be the last sequence of its subject."""
    return block(f"Nats-Expected-Last-Subject-Sequence: {sequence}", *lines)


def known_from(offset: int) -> LastSequences:
    """What is known of a log of which nothing was read yet but that it has nothing from `offset` on."""
    return LastSequences(offset)


def test_last_sequences_are_asked_for_before_anything_is_decided() -> None:
    messages = group((b"orders.a", b"0", block("Nats-Msg-Id: x"), b""), (b"orders.b", b"1", expecting("0"), b""))
    ids, lasts = MessageIds(9), LastSequences(7)
    for known, log_start, unknown in ((None, 7, []), (lasts, 6, [b"orders.b"])):
        admission = admit(messages, RULES, log_start=log_start, log_end=7, ids=ids, lasts=known)
        assert (admission.needs_lasts, admission.unknown) == (True, unknown)
        assert not errors(admission)
        assert not len(ids)  # nothing is there yet
        assert lasts.table.find(b"orders.a", 0, 8) == -1
    assert len(admit(messages, RULES, log_start=7, log_end=7, ids=ids, lasts=lasts).rows) == 2
    assert len(admit(one("Nats-Expected-Last-Subject-Sequence: "), RULES, log_end=0).rows) == 1  # an empty one is none


def test_ids_that_are_not_read_yet_leave_no_row_of_a_subject_behind() -> None:
    messages = group((b"orders.a", b"0", expecting("0"), b""), (b"orders.a", b"1", block("Nats-Msg-Id: x"), b""))
    lasts = known_from(0)
    assert admit(messages, RULES, log_end=0, lasts=lasts).needs_ids
    admission = admit(messages, RULES, log_end=0, ids=MessageIds(9), lasts=lasts)
    assert groups.replies(admission.rows) == [b"0", b"1"]


def test_messages_of_one_read_see_each_other() -> None:
    messages = group(
        (b"orders.a", b"0", None, b""),
        (b"orders.a", b"1", expecting("8"), b""),
        (b"orders.a", b"2", expecting("8"), b""),
        (b"orders.b", b"3", expecting("0"), b""),
        (b"orders.b", b"4", expecting("0"), b""),
        (b"orders.b", b"5", expecting("0010", "Nats-Expected-Last-Sequence: 9"), b""),
        (b"orders.b", b"6", expecting("10", "Nats-Expected-Last-Sequence: 10"), b""),
        (b"orders.a", b"7", expecting("9", "Nats-Expected-Last-Sequence: 1"), b"v" * 1_001),
        (b"orders.a", b"8", expecting("nine"), b""),
        (b"orders.a", b"9", expecting("9"), b""),
    )
    lasts = known_from(7)
    admission = admit(messages, RULES, log_start=7, log_end=7, lasts=lasts)
    assert groups.replies(admission.rows) == [b"0", b"1", b"3", b"6", b"9"]
    told = [(ack.reply, ack.err_code, ack.body["error"]["description"]) for ack in errors(admission)]
    wrong = "wrong last sequence: "
    assert told == [("2", 10071, wrong + "9"), ("4", 10071, wrong + "10"), ("5", 10071, wrong + "10"),
                    ("7", 10071, wrong + "11"), ("8", 10071, wrong + "9")]  # fmt: skip


def test_messages_without_headers_are_seen_as_well() -> None:
    lasts = known_from(0)
    plain = group(*[(b"orders.%d" % (number % 3), None, None, b"") for number in range(6)])
    admission = admit(plain, RULES, log_end=0, lasts=lasts)
    assert admission.rows is plain  # taken as a whole
    lasts.stored(admission.rows, 0, 6)
    asking = group((b"orders.1", b"1", expecting("5"), b""), (b"orders.2", b"2", expecting("5"), b""))
    admission = admit(asking, RULES, log_end=6, lasts=lasts)
    assert groups.replies(admission.rows) == [b"1"]
    assert errors(admission)[0].body["error"]["description"] == "wrong last sequence: 6"


def test_what_was_not_written_is_no_last_message() -> None:
    lasts = known_from(0)
    three = group(*[(b"orders.a", None, None, b"") for _ in range(3)])
    lasts.stored(admit(three, RULES, log_end=0, lasts=lasts).rows, 0, 2)
    assert refused_with(admit(group((b"orders.a", b"r", expecting("3"), b"")), RULES, log_end=2, lasts=lasts)) == 10071
    lasts.stored(MessageGroup(b""), 2, 2)
    assert len(admit(group((b"orders.a", b"r", expecting("2"), b"")), RULES, log_end=2, lasts=lasts).rows) == 1


def test_what_is_gone_is_no_last_message() -> None:
    lasts = known_from(0)
    two = group((b"orders.a", None, None, b""), (b"orders.b", None, None, b""))
    lasts.stored(admit(two, RULES, log_end=0, lasts=lasts).rows, 0, 2)
    asking = group((b"orders.a", b"0", expecting("1"), b""), (b"orders.a", b"1", expecting("0"), b""))
    admission = admit(asking, RULES, log_start=1, log_end=2, lasts=lasts)
    assert groups.replies(admission.rows) == [b"1"]
    assert errors(admission)[0].body["error"]["description"] == "wrong last sequence: 0"


def test_what_a_search_has_found_counts_until_the_messages_are_stored() -> None:
    asking = group(
        (b"orders.b", b"0", expecting("4"), b""),
        (b"orders.c", b"1", expecting("0"), b""),
        (b"orders.d", b"2", expecting("0"), b""),
        (b"orders.b", b"3", expecting("6"), b""),
        (b"orders.b", b"4", expecting("4"), b""),
    )
    lasts = known_from(5)
    assert admit(asking, RULES, log_end=5, lasts=lasts).unknown == [b"orders.b", b"orders.c", b"orders.d"]
    lasts.searched([b"orders.b", b"orders.c", b"orders.d"], [3, -1, 0], 5)
    admission = admit(asking, RULES, log_start=1, log_end=5, lasts=lasts)
    assert groups.replies(admission.rows) == [b"0", b"1", b"2", b"3"]
    told = [ack.body["error"]["description"] for ack in errors(admission)]
    assert told == ["wrong last sequence: 9"]
    lasts.stored(admission.rows, 5, 9)
    again = group((b"orders.b", b"0", expecting("9"), b""), (b"orders.e", b"1", expecting("0"), b""))
    assert admit(again, RULES, log_end=9, lasts=lasts).unknown == [b"orders.e"]


def test_what_was_found_is_void_once_the_table_knows_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SUBJECT_TABLE_MAX", 2)
    asking = group((b"orders.b", b"r", expecting("0"), b""))
    lasts = known_from(5)
    lasts.searched([b"orders.b"], [-1], 5)
    for offset, subject in enumerate((b"orders.b", b"orders.c", b"orders.d"), 5):  # which the search did not see
        rows = admit(group((subject, None, None, b"")), RULES, log_end=offset, lasts=lasts).rows
        lasts.stored(rows, offset, offset + 1)
        lasts.searched([b"orders.b"], [-1], 5)
    assert admit(asking, RULES, log_end=8, lasts=lasts).unknown == [b"orders.b"]
    lasts.searched([b"orders.b"], [5], lasts.table.known_from)
    assert refused_with(admit(asking, RULES, log_end=8, lasts=lasts)) == 10071


def test_why_the_last_sequence_of_a_subject_is_unknown() -> None:
    asking = group((b"orders.b", b"r", expecting("0"), b""))
    lasts = known_from(5)
    lasts.failure = "the disk is gone"
    lasts.searched([b"orders.b"], [UNREADABLE], 5)
    assert refused_with(admit(asking, RULES, log_end=5, lasts=lasts)) == 10077
    lasts.failure = ""
    lasts.searched([b"orders.b"], [-1], 5)
    for log_start in (0, 5):
        added = admit(asking, RULES, log_start=log_start, log_end=5, lasts=lasts, is_added=True)
        assert refused_with(added) == 10003
        assert "this partition was added" in errors(added)[0].body["error"]["description"]
    lasts.searched([b"orders.b"], [2], 5)  # of its own
    assert refused_with(admit(asking, RULES, log_end=5, lasts=lasts, is_added=True)) == 10071
    assert refused_with(admit(asking, RULES, log_start=3, log_end=5, lasts=lasts, is_added=True)) == 10003


def test_ids_are_asked_for_before_anything_is_decided() -> None:
    for line in ("Nats-Msg-Id: x", "Nats-Expected-Last-Msg-Id: x"):
        assert admit(one(line), RULES, log_end=0).needs_ids
        assert not admit(one(line), RULES, log_end=0, ids=MessageIds(9)).needs_ids
    for line in ("Nats-Msg-Id:", "Nats-Expected-Last-Msg-Id: ", "A: 1"):  # an empty one is none
        assert len(admit(one(line), RULES, log_end=0).rows) == 1


def test_a_known_id_is_handed_back_with_its_offset() -> None:
    ids = MessageIds(9)
    messages = group(
        (b"orders.a", b"0", block("Nats-Msg-Id: x"), b""),
        (b"orders.a", b"1", block("Nats-Msg-Id: y"), b"v" * 1_001),  # too large, so not known by that
        (b"orders.a", b"2", block("Nats-Msg-Id: x"), b"v" * 1_001),  # a duplicate, whatever its size
        (b"orders.a", b"3", block("Nats-Msg-Id: y"), b""),
        (b"orders.a", b"4", block("Nats-Msg-Id: x", "Nats-Expected-Last-Sequence: 7"), b""),
        (b"orders.a", b"5", block("Nats-Msg-Id: x", "Nats-Expected-Last-Msg-Id: z"), b""),
        (b"orders.a", b"6", block("Nats-Msg-Id: z", "Nats-Expected-Last-Msg-Id: x"), b""),
        (b"orders.a", b"7", block("Nats-Msg-Id: z", "Nats-Expected-Last-Msg-Id: y"), b""),
    )
    admission = admit(messages, RULES, log_end=7, ids=ids)
    assert groups.replies(admission.rows) == [b"0", b"3", b"7"]
    assert [(one.row, one.number) for one in admission.duplicates] == [(2, 7), (5, 7)]
    assert [(ack.reply, ack.err_code) for ack in errors(admission)] == [("1", 10054), ("4", 10071), ("6", 10070)]
    assert admission.has_ids


def test_an_id_is_expected_only_where_ids_are_kept() -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", dedup_window_ms=None))
    assert refused_with(admit(one("Nats-Expected-Last-Msg-Id: x"), rules, log_end=0)) == 10003
    admission = admit(one("Nats-Msg-Id: x"), rules, log_end=0)
    assert (len(admission.rows), admission.has_ids) == (1, True)


ALLOWING = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>", allow_message_ttl=True))


@pytest.mark.parametrize("ttl", ["0", "0s", "999ms", "90x", "-1h", "1h-", ".", "s", "1.s.", "nevers", "9000000001"])
def test_a_time_to_live_that_is_none_is_refused(ttl: str) -> None:
    assert refused_with(admit(one(f"Nats-TTL: {ttl}"), ALLOWING, log_end=0)) == 10165


@pytest.mark.parametrize(("ttl", "flags"), [("1", 8), ("1h", 8), ("Never", 0), ("00", 0), ("", 0)])
def test_a_time_to_live_is_marked_where_it_ends(ttl: str, flags: int) -> None:
    for line in (f"Nats-TTL: {ttl}", f"Nats-TTL:{ttl}  "):
        admission = admit(one(line), ALLOWING, log_end=0)
        assert (len(admission.rows), admission.flags, errors(admission)) == (1, flags, [])
    both = admit(one(f"Nats-TTL: {ttl}", "Nats-Msg-Id: x"), ALLOWING, log_end=0, ids=MessageIds(9))
    assert both.flags == flags | 1


def test_a_time_to_live_is_refused_where_the_stream_has_none() -> None:
    for ttl in ("5", "never", "1h"):
        assert refused_with(admit(one(f"Nats-TTL: {ttl}"), RULES, log_end=0)) == 10166
    assert refused_with(admit(one("Nats-TTL: soon"), RULES, log_end=0)) == 10165
    for ttl in ("", "00"):
        assert len(admit(one(f"Nats-TTL: {ttl}"), RULES, log_end=0).rows) == 1
    assert refused_with(admit(one("Nats-TTL: 5", "Nats-Expected-Last-Sequence: 9"), RULES, log_end=0)) == 10166


def test_nothing_goes_for_a_message() -> None:
    for rollup in ("sub", "all", "SUB", "some"):
        assert refused_with(admit(one(f"Nats-Rollup: {rollup}"), RULES, log_end=0)) == 10111
    assert len(admit(one("Nats-Rollup:"), RULES, log_end=0).rows) == 1
    assert refused_with(admit(one("Nats-Rollup: sub", "Nats-Expected-Last-Sequence: 9"), RULES, log_end=0)) == 10071


def test_text_behind_the_blank_line_is_no_header() -> None:
    headers = block("A: 1") + b"Penstock-Key: k\r\nNats-TTL: 1\r\nNats-Expected-Stream: other\r\n\r\n"
    admission = admit(group((b"orders.a", b"r", headers, b"v")), RULES, log_end=0)
    assert groups.keys(admission.rows) == [None]
    assert groups.headers(admission.rows) == [headers]


@pytest.mark.parametrize(
    ("expected", "is_right"),
    [
        ("5", True),
        ("0" * 40 + "5", True),
        ("0" * 19 + "59", False),  # its first twenty digits are a 5
        ("5" + "0" * 30, False),
        ("", True),  # none, as in JetStream
        ("+5", False),
        ("5.0", False),
    ],
)
def test_every_digit_of_an_expected_sequence_counts(expected: str, is_right: bool) -> None:
    admission = admit(one(f"Nats-Expected-Last-Sequence: {expected}"), RULES, log_end=5)
    assert len(admission.rows) == is_right
    assert [ack.err_code for ack in errors(admission)] == ([] if is_right else [10071])


def test_size_counts_headers() -> None:
    headers = block("A: 1")
    assert len(admit(one("A: 1", value=bytes(1_000 - len(headers))), RULES, log_end=0).rows) == 1
    assert refused_with(admit(one("A: 1", value=bytes(1_001 - len(headers))), RULES, log_end=0)) == 10054
    assert len(admit(one(value=bytes(1_000)), RULES, log_end=0).rows) == 1
    assert refused_with(admit(one(value=bytes(1_001)), RULES, log_end=0)) == 10054


def test_sequence_is_checked_before_size() -> None:
    lines = ("Nats-Expected-Last-Sequence: 3",)
    assert refused_with(admit(one(*lines, value=bytes(2_000)), RULES, log_end=0)) == 10071


def test_header_block_over_64k() -> None:
    rules = AdmissionRules.of(StreamConfig(name="orders", subject="orders.>"))
    assert refused_with(admit(one("A: " + "x" * limits.HEADER_BLOCK_BYTES_MAX), rules, log_end=0)) == 10097


def test_no_error_ack_for_who_wants_no_ack() -> None:
    admission = admit(one("Penstock-Ack: none", value=bytes(2_000)), RULES, log_end=0)
    assert not errors(admission)
    assert admission.dropped == {REFUSED: 1}


@pytest.mark.parametrize(
    "subject",
    [b"orders.*", b"orders.>", b"orders.*.x", b"orders.\x07", b"orders." + b"x" * limits.SUBJECT_BYTES_MAX],
)
@pytest.mark.parametrize("headers", [None, block("A: 1")])
def test_a_subject_that_the_socket_would_refuse_is_refused(subject: bytes, headers: bytes | None) -> None:
    messages = group((subject, b"bad", headers, b"1"), (b"orders.a", b"good", headers, b"2"))
    admission = admit(messages, RULES, log_end=0)
    assert groups.subjects(admission.rows) == [b"orders.a"]
    assert groups.replies(admission.rows) == [b"good"]
    assert [(ack.reply, ack.err_code) for ack in errors(admission)] == [("bad", 10003)]


def test_subject_that_is_no_text_is_refused_and_the_others_stored() -> None:
    messages = group((b"orders.\xff", b"bad", None, b"1"), ("orders.ü".encode(), b"good", None, b"2"))
    admission = admit(messages, RULES, log_end=0)
    assert groups.subjects(admission.rows) == ["orders.ü".encode()]
    assert [(ack.reply, ack.err_code) for ack in errors(admission)] == [("bad", 10003)]


def test_half_characters_of_two_subjects_do_not_make_one() -> None:
    first, second = "ü".encode()[:1], "ü".encode()[1:]
    admission = admit(group((b"orders." + first, None, None, b""), (second + b".x", None, None, b"")), RULES, log_end=0)
    assert len(admission.rows) == 0


@pytest.mark.parametrize("subject", [b"$SYS.x", b"$JS.API.x", b"_INBOX.a.b", b"$PENSTOCK.x"])
def test_reserved_subjects_only_by_name(subject: bytes) -> None:
    catch_all = AdmissionRules.of(StreamConfig(name="all", subject=">", acks=Acks.NEVER))
    admission = admit(one(subject=subject), catch_all, log_end=0)
    assert len(admission.rows) == 0
    assert admission.dropped == {RESERVED_SUBJECT: 1}
    named = AdmissionRules.of(StreamConfig(name="inbox", subject=subject.decode().split(".")[0] + ".>"))
    assert len(admit(one(subject=subject), named, log_end=0).rows) == 1


def test_refuse_all() -> None:
    messages = group(
        (b"orders.a", b"1", None, b""),
        (b"orders.a", None, None, b""),
        (b"orders.a", b"2", block("Penstock-Ack: none"), b""),
        (b"orders.a", b"3", block("Nats-Expected-Stream: other"), b""),
        (b"orders.a", b"4", block("Nats-Expected-Stream: orders"), b""),
    )
    admission = refuse_all(messages, RULES, acks.unavailable("busy"), "over_budget")
    assert len(admission.rows) == 0
    assert [(ack.reply, ack.err_code) for ack in errors(admission)] == [("1", 10008), ("4", 10008)]
    assert admission.dropped == {"over_budget": 4, OTHER_STREAM: 1}


def test_refuse_all_does_not_count_what_it_would_not_have_stored() -> None:
    catch_all = AdmissionRules.of(StreamConfig(name="all", subject=">", acks=Acks.NEVER))
    admission = refuse_all(one(subject=b"_INBOX.a"), catch_all, acks.unavailable("busy"), "over_budget")
    assert admission.dropped == {RESERVED_SUBJECT: 1}


def test_a_message_that_no_stream_takes_is_refused_and_counted() -> None:
    size = limits.NATS_FRAME_BYTES_MAX + 1
    messages = group((b"orders.a", b"r1", None, b"v"))
    messages.too_large.extend(
        [
            TooLarge(b"orders.a", b"r2", None, size),
            TooLarge(b"orders.a", None, None, size),
            TooLarge(b"orders.a", b"r3", block("Penstock-Ack: none"), size),
            TooLarge(b"orders.a", b"r4", block("Nats-Expected-Stream: other"), size),
        ]
    )
    admission = admit(messages, RULES, log_end=0)
    assert groups.replies(admission.rows) == [b"r1"]
    assert admission.dropped == {REFUSED: 3, OTHER_STREAM: 1}
    (error,) = errors(admission)
    assert (error.reply, error.err_code) == ("r2", 10054)
    assert f"{size} bytes, the stream takes 1000" in error.body["error"]["description"]
    everything = admit(messages, AdmissionRules.of(StreamConfig(name="all", subject=">")), log_end=0)
    assert everything.dropped == {REFUSED: 3, OTHER_STREAM: 1}
    closed = refuse_all(messages, RULES, acks.unavailable("busy"), "over_budget")
    assert closed.dropped == {"over_budget": 1, REFUSED: 3, OTHER_STREAM: 1}
    assert [(ack.reply, ack.err_code) for ack in errors(closed)] == [("r2", 10054), ("r1", 10008)]


def test_refused_messages_of_one_kind_hear_their_own_numbers() -> None:
    sizes = [1_001, 2_000, 1_001, 12_345]
    messages = group(*[(b"orders.a", b"r%d" % number, None, bytes(size)) for number, size in enumerate(sizes)])
    admission = admit(messages, RULES, log_end=0)
    assert [ack.reply for ack in errors(admission)] == ["r0", "r1", "r2", "r3"]
    for ack, size in zip(errors(admission), sizes, strict=True):
        assert ack == one_error(acks.error_ack(b"orders", ack.reply.encode(), acks.message_too_large(size, 1_000)))


def one_error(command: bytes) -> Ack:
    (ack,) = parse_acks(command)
    return ack


def test_only_so_many_messages_are_quoted_to_who_sent_them() -> None:
    count = limits.REFUSALS_QUOTED_MAX + 3
    names = [(b"orders.a", b"r", block(f"Nats-Batch-{number}: 1"), b"") for number in range(count)]
    subjects = [(b"orders..%d" % number, b"r", None, b"") for number in range(count)]
    found = errors(admit(group(*names, *subjects), RULES, log_end=0))
    texts = [ack.body["error"]["description"] for ack in found]
    assert {ack.err_code for ack in found} == {10003}
    for number in range(count):
        is_quoted = number < limits.REFUSALS_QUOTED_MAX
        assert texts[number].endswith(f" support Nats-Batch-{number}") is is_quoted
        assert (f"'orders..{number}'" in texts[count + number]) is is_quoted
    assert texts[count - 1].endswith("does not support one of the message's Nats- or Penstock- headers")
    assert texts[-1] == "the subject is not a plain subject"


def test_a_quoted_name_is_never_taken_for_a_place_of_a_number() -> None:
    (ack,) = errors(admit(one("Nats-Incr\0: 1"), RULES, log_end=0))
    assert ack.body["error"]["description"].endswith("does not support Nats-Incr\0")


def test_a_refusal_quotes_so_much_and_no_more() -> None:
    # nats-server ends our connection for an answer that is over its max_payload.
    (ack,) = errors(admit(one(*(f"Nats-Batch-{number}: 1" for number in range(3_000))), RULES, log_end=0))
    assert ack.err_code == 10003
    assert len(ack.body["error"]["description"]) < limits.REFUSAL_NAMES_CHARS_MAX + 100


@pytest.mark.parametrize(
    ("subject", "headers", "value"),
    [
        (b"o", b"", b""),
        (b"o", block("Nats-Expected-Last-Sequence: 9"), b""),
        (b"o", block("Nats-Batch-:"), b""),
        (b"o", block(*(f"Nats-Incr{number}:" for number in range(200))), b""),
        (b"*", b"", b""),
        (b"o.\x01" * 200, b"", b""),
        (b"o", b"", b"v" * 1_001),
    ],
)
def test_refusals_are_bounded_by_what_they_refuse(subject: bytes, headers: bytes, value: bytes) -> None:
    rules = AdmissionRules.of(
        StreamConfig(name="n" * limits.STREAM_NAME_CHARS_MAX, subject=">", max_message_bytes=1_000)
    )
    count = 100
    messages = group(*[(subject, b"r", headers or None, value)] * count)
    wire_bytes = count * len(b"MSG %b 1 r %d\r\n%b%b\r\n" % (subject, len(headers + value), headers, value))
    closed = acks.store_failed("the stream is read_only; see its status")
    for admission in (admit(messages, rules, log_end=0), refuse_all(messages, rules, closed, "read_only")):
        answered_bytes = sum(map(len, (*admission.errors, admission.denials)))
        assert answered_bytes <= limits.REFUSALS_GROWTH_MAX * wire_bytes, answered_bytes / wire_bytes
