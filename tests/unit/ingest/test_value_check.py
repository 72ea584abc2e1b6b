"""Values against the schemas of their subjects, before they are stored."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from penstock.base import limits
from penstock.base.config import SchemaCheck, StreamConfig
from penstock.base.ids import StreamId, TimestampUs
from penstock.hot.message_group import MessageGroup
from penstock.ingest.admission import AdmissionRules, admit, marks_of
from penstock.ingest.value_check import VERSION_UNDECIDED, ValueCheck
from penstock.schemas.decoding import Reason
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.plans import SchemaError
from penstock.schemas.registry import SchemaVersion, StreamSchemas, Typed
from tests.envelopes import enveloped
from tests.envelopes import message as in_protobuf
from tests.groups import Message, group_of

SCHEMA = Schema(SchemaKind.JSON_SCHEMA, '{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}')
WHY = "x: a whole number is expected, a string is found"
GOOD, BAD = b'{"x":1}', b'{"x":"one"}'


def check_of(*subjects: str) -> ValueCheck:
    versions = [SchemaVersion(Typed(one), 1, SCHEMA, SCHEMA.hash(), TimestampUs(0)) for one in subjects]
    return ValueCheck(StreamSchemas("s", StreamId(1), tuple(versions)))


def rules(schema_check: SchemaCheck) -> AdmissionRules:
    return AdmissionRules.of(StreamConfig(name="s", subject="a.>", schema_check=schema_check))


def errors(group: MessageGroup, *, check: SchemaCheck = SchemaCheck.REFUSE) -> tuple[int, list[str], int]:
    """Rows that are stored, what refused messages are told, and how many are stored though they do not fit."""
    values = check_of("a.*")
    marks = marks_of(group, values) if check is SchemaCheck.REFUSE else None
    admission = admit(group, rules(check), log_end=0, values=values, mistyped=marks)
    told = [line for line in b"".join(admission.errors).split(b"\r\n") if line.startswith(b"{")]
    return len(admission.rows), [json.loads(one)["error"]["description"] for one in told], admission.misfits


def message(subject: bytes, value: bytes, headers: bytes | None = None) -> Message:
    return subject, b"r", headers, value


def test_marks_stand_for_reasons() -> None:
    check = check_of("a.*")
    assert check.of_group(group_of([message(b"a.b", GOOD)])) is None
    assert check.of_group(group_of([])) is None
    assert check.of_rows(pa.record_batch([pa.array([], pa.string())], ["subject"])) is None
    marks = check.of_group(group_of([message(b"a.b", GOOD), message(b"a.b", BAD), message(b"a.b", b"{")]))
    assert marks is not None
    assert marks[0] == 0
    assert [check.reason(one) for one in marks[1:]] == [Reason.FORM.text, Reason.ENDS.text]


def test_a_subject_without_a_schema_is_not_checked() -> None:
    check = check_of("a.*")
    assert check.of_group(group_of([message(b"b", b"?")])) is None
    marks = check.of_group(group_of([message(b"b", b"?"), message(b"a.b", b"?"), message(b"a.b.c", b"?")]))
    assert marks is not None
    assert [bool(one) for one in marks] == [False, True, False]


def test_a_subject_that_is_not_utf_8_does_no_harm() -> None:
    assert check_of("a.*").of_group(group_of([message(b"a.\xff", GOOD), message(b"\xff\xfe", BAD)])) is None
    assert check_of("a.*").of_group(group_of([message(b"a.\xff", BAD)])) is not None
    stored, told, _ = errors(group_of([message(b"a.\xff", BAD), message(b"a.b", GOOD)]))
    assert (stored, told) == (1, ["the subject is not valid UTF-8"])


def test_a_version_that_is_not_registered_does_not_fit() -> None:
    headers = b"NATS/1.0\r\nPenstock-Schema: " + b"0" * 64 + b"\r\n\r\n"
    stored, (told,), _ = errors(group_of([message(b"a.b", GOOD, headers), message(b"a.c", GOOD)]))
    assert stored == 1
    assert told.endswith("register that version first (penstock schema register)")
    assert errors(group_of([message(b"b", GOOD, headers)]))[0] == 1, "no schema has that subject"


def test_a_version_of_which_nothing_can_be_found_out_is_no_misfit() -> None:
    headers = b"NATS/1.0\r\nPenstock-Schema: " + b"0" * 64 + b"\r\n\r\n"
    group, values = group_of([message(b"a.b", GOOD, headers), message(b"a.b", BAD)]), check_of("a.*")
    marks = marks_of(group, values)
    assert marks is not None
    assert values.names_unknown(marks)
    admission = admit(group, rules(SchemaCheck.REFUSE), log_end=0, values=values, mistyped=values.undecided(marks))
    bodies = [json.loads(line) for line in b"".join(admission.errors).split(b"\r\n") if line.startswith(b"{")]
    assert [one["error"]["code"] for one in bodies] == [503, 400]
    assert [one.get("reason") for one in bodies] == [None, "schema_mismatch"]
    assert bodies[0]["error"]["description"] == f"temporarily unavailable: {VERSION_UNDECIDED}"


def test_the_plans_of_an_earlier_check_are_used_again() -> None:
    before = check_of("a.*")
    schemas = StreamSchemas("s", StreamId(1), (SchemaVersion(Typed("a.*"), 1, SCHEMA, "h", TimestampUs(0)),))
    assert ValueCheck(schemas, before).planned[SCHEMA] is before.planned[SCHEMA]


def test_what_does_not_fit_is_refused_with_the_reason() -> None:
    group = group_of([message(b"a.b", BAD), message(b"a.b", GOOD), message(b"a.b", b"{"), message(b"a.c.d", BAD)])
    text = "the value does not fit its schema: "
    explained = [f"{Reason.FORM.text} ({WHY})", f"{Reason.ENDS.text} (near byte 1 of 1)"]
    assert errors(group) == (2, [text + each for each in explained], 0)
    assert errors(group, check=SchemaCheck.COUNT) == (4, [], 2)
    assert errors(group_of([message(b"a.b", GOOD)]), check=SchemaCheck.COUNT) == (1, [], 0)


def test_only_some_messages_of_a_group_are_explained_and_all_have_their_reason() -> None:
    most = limits.SCHEMA_EXPLAINED_PER_GROUP_MAX
    count = limits.REFUSALS_QUOTED_MAX + 10
    _, told, _ = errors(group_of([message(b"a.b", BAD)] * count))
    text = f"the value does not fit its schema: {Reason.FORM.text}"
    assert told == [f"{text} ({WHY})"] * most + [text] * (count - most)


def test_explanations_are_bounded_by_what_they_refuse() -> None:
    name = "\N{GRINNING FACE}" * 200
    needed = {"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]}
    schema = Schema(SchemaKind.JSON_SCHEMA, json.dumps(needed))
    version = SchemaVersion(Typed(">"), 1, schema, schema.hash(), TimestampUs(0))
    values = ValueCheck(StreamSchemas("s", StreamId(1), (version,)))
    longest = "n" * limits.STREAM_NAME_CHARS_MAX
    config = StreamConfig(name=longest, subject=">", schema_check=SchemaCheck.REFUSE)
    for count in (1, 4, 100):
        group = group_of([(b"o", b"r", None, b"{}")] * count)
        marks = marks_of(group, values)
        admission = admit(group, AdmissionRules.of(config), log_end=0, values=values, mistyped=marks)
        assert admission.mistyped == count
        wire_bytes = count * len(b"MSG o 1 r 2\r\n{}\r\n")
        answered_bytes = sum(map(len, admission.errors))
        assert answered_bytes <= limits.REFUSALS_GROWTH_MAX * wire_bytes, answered_bytes / wire_bytes


def test_an_explanation_is_that_of_the_message_whose_ack_has_it() -> None:
    values = [BAD, b'{"x":[]}', b'{"x":{}}']
    kinds = ["a string", "an array", "an object"]
    plain = [message(b"a.b", each) for each in values]
    in_envelopes = [message(b"a.b", enveloped(in_protobuf({"value": each}))) for each in values]
    _, told, _ = errors(group_of([plain[0], in_envelopes[0], plain[1], message(b"a.b", GOOD), plain[2]]))
    assert [kind for kind in kinds for each in told if f"{kind} is found" in each] == kinds


def test_other_refusals_come_first_and_are_not_counted() -> None:
    headers = b"NATS/1.0\r\nPenstock-Ack: ?\r\n\r\n"
    group = group_of([message(b"a.b", BAD, headers)])
    assert (
        errors(group) == errors(group, check=SchemaCheck.COUNT) == (0, ["Penstock-Ack must be none, leader or all"], 0)
    )


def test_a_tombstone_has_no_value_to_check() -> None:
    assert errors(group_of([message(b"a.b", b"", b"NATS/1.0\r\nPenstock-Tombstone: 1\r\n\r\n")])) == (1, [], 0)
    assert errors(group_of([message(b"a.b", b"")]))[0] == 0


def test_a_value_in_an_envelope_is_checked_without_it() -> None:
    assert errors(group_of([message(b"a.b", enveloped(in_protobuf({"value": GOOD})))]))[0] == 1
    assert errors(group_of([message(b"a.b", enveloped(in_protobuf({"value": BAD})))]))[0] == 0
    assert errors(group_of([message(b"a.b", enveloped(in_protobuf({"value": BAD})))]), check=SchemaCheck.COUNT)[2] == 1


def test_a_stream_without_schemas_has_no_check() -> None:
    with pytest.raises(SchemaError, match="has no schemas"):
        check_of()
