"""Whatever stands in an envelope is stored and acked as a model of it says, compiled or not; damage does no harm."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.subjects import subject_mistake
from penstock.hot import classification, envelope, envelope_acks
from tests import groups, hot_modes
from tests.envelopes import enveloped, message
from tests.extent import each_change, examples
from tests.unit.node.harness import parse_acks

NAME = b"s"
HEAD = envelope_acks.head(NAME, b"a.>")
LOG_END = 7
LIMIT = 120
LEADER, ALL, NONE = range(3)

SAFE = st.text("ABCxyz-09", min_size=1, max_size=6).map(str.encode)
NAMES = SAFE | st.sampled_from([b"", b"a b", b"a:b", "ü".encode()])
LINES = st.binary(max_size=8)
INBOXES = st.sampled_from([b"", b"_INBOX.a", b"acks.x", b"a.*", b"a b", b"$SYS.x", "é".encode()])
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "offset": st.sampled_from([-1, 0, LOG_END, LOG_END + 1, 2**63 - 1]),
        "key": st.binary(max_size=9),
        "value": st.binary(max_size=40) | st.just(bytes(LIMIT + 1)),
        "ack_inbox": INBOXES,
        "correlation_id": st.text(max_size=8).map(str.encode),
        "ack_policy": st.integers(-1, 3),
    },
)
ENTRIES = st.lists(st.tuples(NAMES, LINES), max_size=4)
PLAIN = st.binary(max_size=20)
MESSAGES = st.lists(
    st.tuples(st.none() | st.just(b"r"), PLAIN | st.tuples(FIELDS, ENTRIES, st.booleans())), min_size=1, max_size=6
)
Spec = tuple[dict[str, Any], list[tuple[bytes, bytes]], bool]


def is_entry(name: bytes, value: bytes) -> bool:
    """Whether a header can be one: as RFC 9110 has names, and with a value that comes back as it is."""
    return (
        bool(name)
        and all(0x21 <= byte <= 0x7E and byte != 0x3A for byte in name)
        and not {0, 10, 13} & set(value)
        and value.strip(b" \t") == value
    )


def expected(spec: Spec, reply: bytes | None, next_offset: int) -> tuple[bool, tuple[Any, ...], tuple[Any, ...] | None]:
    """By the model: whether it is stored; key, value, headers; and who hears what, early or not."""
    fields, entries, _ = spec
    inbox = fields.get("ack_inbox", b"")
    is_inbox = subject_mistake(inbox.decode()) is None and not inbox.startswith(b"$")
    policy = fields.get("ack_policy", LEADER)
    headers = dict(entries)
    key, value = fields.get("key") or None, fields.get("value", b"")
    lines = b"".join(b"%b: %b\r\n" % entry for entry in headers.items())
    block = b"NATS/1.0\r\n%b\r\n" % lines if headers else None
    is_stored = (
        (not inbox or is_inbox)
        and LEADER <= policy <= NONE
        and all(is_entry(*entry) for entry in entries)
        and (fields.get("offset", -1) < 0 or fields["offset"] == next_offset)
        and len(value) + len(key or b"") + len(block or b"") <= LIMIT
    )
    target = inbox if inbox and is_inbox else reply
    heard = None
    if target is not None and policy != NONE:
        heard = (target.decode(), fields.get("correlation_id", b"").decode(), policy == LEADER)
    return is_stored, (key, value, block), heard


@given(MESSAGES, st.booleans(), st.booleans())
@settings(max_examples=examples(400))
def test_the_model_says_what_is_stored_and_acked(messages: list[Any], acks: bool, acks_envelopes: bool) -> None:
    values = [
        what if isinstance(what, bytes) else enveloped(message(what[0], what[1]), crc=what[2]) for _, what in messages
    ]
    group = groups.group_of([(b"a.b", reply, None, value) for (reply, _), value in zip(messages, values, strict=True)])
    found = classification.classify(group, NAME, acks, LIMIT, False, LOG_END, acks_envelopes, None, False, None, 0)
    rows: list[tuple[Any, ...]] = []
    refused, plain = [], []
    early: list[tuple[str, str, int]] = []
    late: list[tuple[str, str, int]] = []
    for number, (reply, what) in enumerate(messages):
        next_offset = LOG_END + len(rows)
        if isinstance(what, bytes):
            rows.append((None, what, None))
            plain.append(reply if acks else None)
            continue
        is_stored, row, heard = expected(what, reply, next_offset)
        heard = heard if acks_envelopes else None
        if not is_stored:
            refused.append((number, heard is not None, heard and heard[:2]))
            continue
        rows.append(row)
        plain.append(None)
        if heard is not None:
            (early if heard[2] else late).append((*heard[:2], next_offset))
    out = found.rows
    assert [(out.key(row), out.value(row), out.headers(row)) for row in range(len(out))] == rows
    assert groups.replies(out) == plain
    assert [(one.row, one.is_answered, told(one.enveloped)) for one in found.refused] == refused
    assert (heard_by(out, is_early=True), heard_by(out, is_early=False)) == (early, late)


def told(record: bytes | None) -> tuple[str, str] | None:
    """Who hears of a refusal, and by which correlation id."""
    if record is None:
        return None
    tail = envelope_acks.error_tail(envelope_acks.UNKNOWN, b"{}")
    (ack,) = parse_acks(envelope_acks.refusals(record, HEAD, tail))
    return ack.reply, ack.body.get("correlation_id", "")


def heard_by(rows: Any, *, is_early: bool) -> list[tuple[str, str, int]]:
    records = envelope_acks.waiting(rows, 0, len(rows), is_early)
    acks = parse_acks(envelope_acks.acks(records, HEAD, LOG_END, 5, b""))
    return [(ack.reply, ack.body.get("correlation_id", ""), ack.body["offset"]) for ack in acks]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = bytearray(enveloped(message(draw(FIELDS), draw(ENTRIES)), crc=draw(st.booleans())))
    for _ in range(draw(st.integers(0, 3))):
        data[draw(st.integers(0, len(data) - 1))] ^= 1 << draw(st.integers(0, 7))
    return bytes(data[: draw(st.integers(0, len(data)))])


WHOLE_BLOCKS = st.sampled_from([b"NATS/1.0\r\n\r\n", b"NATS/1.0\r\nPenstock-Ack: all\r\n\r\nx"])
BLOCKS = st.none() | WHOLE_BLOCKS | st.binary(max_size=9)
DAMAGED = st.lists(st.tuples(st.none() | st.just(b"r"), BLOCKS, damaged()), max_size=5)


def outcome(mode: Any, messages: list[Any], bytes_max: int, is_closed: bool, flags: int) -> Any:
    """All that becomes of a group: rows, refusals, records and acks."""
    subjects, values = [b"a.b"] * len(messages), [value for *_, value in messages]
    replies, headers = [reply for reply, *_ in messages], [block for _, block, _ in messages]
    group = mode("message_group").MessageGroup.of(subjects, values, headers=headers, replies=replies)
    if is_closed:
        found = mode("classification").close(group, NAME, bool(flags & 1), False, bool(flags & 2))
    else:
        found = mode("classification").classify(
            group, NAME, bool(flags & 1), bytes_max, False, LOG_END, bool(flags & 2), None, False, None, 0
        )
    body_of = lambda verdict, quoted: b"%d \0 %b" % (verdict, quoted or b"")  # noqa: E731
    answers = mode("refusals").answers(found.group, found.refused, body_of, 2, HEAD)
    out = found.rows
    rows = [[part(row) for part in (out.key, out.value, out.headers, out.reply, out.early)] for row in range(len(out))]
    both = [mode("envelope_acks").waiting(out, 0, len(out), is_early) for is_early in (False, True)]
    acks = [mode("envelope_acks").acks(records, HEAD, LOG_END, 5, b"") for records in both]
    return rows, answers, both, acks, [mode("envelope_acks").waiting_count(records) for records in both]


@each_change
@hot_modes.needs_compiled
@given(DAMAGED, st.sampled_from([20, LIMIT]), st.booleans(), st.integers(0, 3))
@settings(max_examples=examples(400))
def test_damage_comes_to_the_same_in_both_modes(
    messages: list[Any], bytes_max: int, is_closed: bool, flags: int
) -> None:
    in_both = [outcome(mode, messages, bytes_max, is_closed, flags) for mode in (hot_modes.running, hot_modes.plain)]
    assert in_both[0] == in_both[1]


@given(damaged())
@settings(max_examples=examples(400))
def test_what_is_no_envelope_is_stored_as_it_came(data: bytes) -> None:
    found = classification.classify(
        groups.group_of([(b"a.b", b"r", None, data)]), NAME, True, 1_000, False, LOG_END, True, None, False, None, 0
    )
    if envelope.parse(data, 0, len(data)) is None:
        assert groups.messages(found.rows) == [(b"a.b", b"r", None, data)]
        assert not found.rows.has_enveloped
    else:
        assert len(found.rows) + len(found.refused) == 1
