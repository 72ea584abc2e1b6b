"""What a registration leads to: numbers, reasons, and what cannot be forced."""

from __future__ import annotations

import base64
import json

import pytest
from google.protobuf import descriptor_pb2

from penstock.base import limits
from penstock.base.errors import RemoteError
from penstock.schemas.decoding import ValueFraming
from penstock.schemas.kinds import Schema, SchemaKind
from penstock.schemas.registering import Numbered, Registration, Wanted, judge, schema_of
from penstock.schemas.registry import Typed
from penstock.schemas.rows import StoredText, StoredVersion

ONE = "struct A { 1: required i64 x } scope S { Made: A, Gone: i64 }"
WIDER = "struct A { 1: required i64 x, 2: optional string y } scope S { Made: A, Gone: i64 }"
OTHER = "struct A { 1: required string x } scope S { Made: A, Gone: i64 }"


def stored(text: str, type_name: str = "A", **more: object) -> tuple[StoredText, StoredVersion]:
    kept = StoredText("frugal", text)
    schema_hash = Schema(SchemaKind.FRUGAL, text, (), type_name).hash()
    version = StoredVersion("frugal", kept.hash(), schema_hash, 0, type_name, **more)  # type: ignore[arg-type]
    return kept, version


def judged(
    text: str, *entries: Wanted, before: dict[str, list[str]] | None = None, force: bool = False
) -> tuple[Numbered, ...]:
    """The numbers for a text, after the texts that a subject has in its versions."""
    versions: dict[str, dict[int, StoredVersion]] = {}
    texts: dict[str, StoredText] = {}
    for subject, old in (before or {}).items():
        for number, one in enumerate(old, 1):
            kept, version = stored(one)
            versions.setdefault(subject, {})[number] = version
            texts[kept.hash()] = kept
    asked = entries or (Wanted(Typed("s.a"), "A"),)
    return judge(Registration("s", ("s.>",), StoredText("frugal", text), asked, versions, texts, force))


def refusal(
    text: str, *entries: Wanted, before: dict[str, list[str]] | None = None, force: bool = False
) -> RemoteError:
    with pytest.raises(RemoteError) as raised:
        judged(text, *entries, before=before, force=force)
    return raised.value


def test_numbers_rise_and_the_same_schema_has_its_own() -> None:
    (first,) = judged(ONE)
    assert (first.number, first.is_new, first.is_forced) == (1, True, False)
    assert first.hash == Schema(SchemaKind.FRUGAL, ONE, (), "A").hash()
    assert judged(WIDER, before={"s.a": [ONE]})[0][:3:2] == (2, True)
    assert judged(ONE, before={"s.a": [ONE, WIDER]})[0][:3:2] == (1, False)
    assert judged(ONE, before={"s.a": [ONE, WIDER]}, force=True)[0][:3:2] == (3, True)
    assert judged(WIDER, before={"s.a": [ONE, WIDER]}, force=True)[0][:3:2] == (2, False)


def test_each_version_before_is_compared() -> None:
    error = refusal(ONE, before={"s.a": [OTHER, WIDER, OTHER]})
    assert error.code == "incompatible_schema"
    assert [one.partition(": A.x")[0] for one in error.details["reasons"]] == ["s.a: version 1", "s.a: version 3"]
    (forced,) = judged(ONE, before={"s.a": [OTHER]}, force=True)
    assert (forced.number, forced.is_forced) == (2, True)


def test_reasons_are_bounded() -> None:
    fields = ", ".join(f"{number}: i64 f{number}" for number in range(1, 60))
    other = fields.replace("i64", "string")
    error = refusal(f"struct A {{ {fields} }}", before={"s.a": [f"struct A {{ {other} }}"]})
    assert len(error.details["reasons"]) == limits.SCHEMA_REASONS_MAX
    assert error.details["more"] == 59 - limits.SCHEMA_REASONS_MAX
    assert f"and {error.details['more']} more" in error.message


def _large(number: int) -> StoredText:
    padding = "x" * 700_000
    return StoredText("json-schema", f'{{"description":"{number}{padding}","properties":{{"p{number}":{{}}}}}}')


def test_a_subject_with_too_much_to_compare_takes_forced_versions() -> None:
    texts = [_large(number) for number in range(limits.SCHEMA_COMPARED_BYTES_MAX // 700_000 + 1)]
    versions = {
        number: StoredVersion(text.kind, text.hash(), Schema(SchemaKind.JSON_SCHEMA, text.text).hash(), 0)
        for number, text in enumerate(texts, 1)
    }
    by_hash = {text.hash(): text for text in texts}
    asked = Registration("s", ("s.>",), _large(99), (Wanted(Typed("s.a"), ""),), {"s.a": versions}, by_hash)
    with pytest.raises(RemoteError, match=r"8,388,608 bytes to compare with; force it") as raised:
        judge(asked)
    assert raised.value.code == "too_large"
    (forced,) = judge(asked._replace(is_forced=True))
    assert (forced.number, forced.is_forced) == (len(texts) + 1, True)


def _descriptors(**fields: int) -> StoredText:
    """The message Point, and a long comment."""
    made = descriptor_pb2.FileDescriptorSet()
    file = made.file.add(name="point.proto", syntax="proto3")
    message = file.message_type.add(name="Point")
    for number, (name, kind) in enumerate(fields.items(), 1):
        message.field.add(name=name, number=number, type=kind, label=1)
    file.source_code_info.location.add(path=[4, 0], leading_comments="x" * 500_000)
    return StoredText("protobuf", base64.b64encode(made.SerializeToString()).decode())


def test_a_descriptor_set_counts_once_for_all_subjects() -> None:
    old, new = _descriptors(x=3), _descriptors(x=3, y=9)
    subjects = [f"s.{number}" for number in range(limits.SCHEMA_COMPARED_BYTES_MAX // old.size + 1)]
    old_hash = Schema(SchemaKind.PROTOBUF, old.text, (), "Point").hash()
    before = {one: {1: StoredVersion("protobuf", old.hash(), old_hash, 0, "Point")} for one in subjects}
    entries = tuple(Wanted(Typed(one), "Point") for one in subjects)
    found = judge(Registration("s", ("s.>",), new, entries, before, {old.hash(): old}))
    assert {one.number for one in found} == {2}


def test_a_version_whose_text_is_lost_or_unreadable_is_incompatible() -> None:
    kept, version = stored(ONE)
    asked = (Wanted(Typed("s.a"), "A"),)
    lost = Registration("s", ("s.>",), StoredText("frugal", WIDER), asked, {"s.a": {1: version}}, {})
    with pytest.raises(RemoteError, match="its text is not there any more"):
        judge(lost)
    later = StoredText("later", ONE)
    unknown = lost._replace(texts={kept.hash(): later})
    with pytest.raises(RemoteError, match="knows no schemas of the kind 'later'"):
        judge(unknown)


def test_operations_of_one_contract() -> None:
    made = Wanted(Typed("s.made", "Made", ValueFraming.FRUGAL), "S.Made")
    gone = Wanted(Typed("s.gone", "Gone", ValueFraming.FRUGAL), "S.Gone")
    assert [each.number for each in judged(ONE, made, gone)] == [1, 1]
    assert refusal(ONE, made, Wanted(Typed("s.x"), "S.Lost")).code == "invalid_schema"


def test_limits_of_versions() -> None:
    wider = (WIDER.replace("2:", f"{number}:") for number in range(3, limits.SCHEMA_VERSIONS_PER_SUBJECT_MAX + 2))
    full = {"s.a": [ONE, *wider]}
    assert refusal(WIDER, before=full).code == "too_large"
    assert judged(ONE, before=full)[0].number == 1


def test_other_kinds() -> None:
    for kind, text in (("avro", '"long"'), ("json-schema", '{"type":"object","properties":{"x":{"type":"integer"}}}')):
        entries = (Wanted(Typed("s.a"), ""),)
        assert judge(Registration("s", ("s.>",), StoredText(kind, text), entries, {}, {}))[0].number == 1
    kept, version = stored(ONE)
    change = Registration(
        "s", ("s.>",), StoredText("avro", '"long"'), entries, {"s.a": {1: version}}, {kept.hash(): kept}
    )
    with pytest.raises(RemoteError, match="the schema was frugal, and is avro"):
        judge(change)


def test_versions_of_avro_that_differ_in_their_bytes_need_a_header_and_others_do_not() -> None:
    def record(*fields: str, doc: str = "") -> StoredText:
        listed = ",".join(f'{{"name":"{name}","type":"long","default":0}}' for name in fields)
        return StoredText("avro", f'{{"type":"record","name":"R","doc":"{doc}","fields":[{listed}]}}')

    def needs_header(new: StoredText, *before: StoredText) -> list[bool]:
        versions = {
            number: StoredVersion(text.kind, text.hash(), schema_of(text, "").hash(), 0)
            for number, text in enumerate(before, 1)
        }
        texts = {text.hash(): text for text in before}
        asked = Registration("s", ("s.>",), new, (Wanted(Typed("s.a"), ""),), {"s.a": versions}, texts)
        return [one.needs_header for one in judge(asked)]

    assert needs_header(record("a")) == [False]
    assert needs_header(record("a"), record("a")) == [False]
    assert needs_header(record("a", doc="what it is"), record("a")) == [False]
    assert needs_header(record("a", "b"), record("a")) == [True]
    assert needs_header(record("a"), record("a"), record("a", "b")) == [True], "it is there already"
    text = '{"properties":{"x":{"type":"integer"}}}'
    assert needs_header(StoredText("json-schema", text), StoredText("json-schema", text + " ")) == [False]


def test_versions_of_avro_with_too_much_to_plan_are_said_to_need_a_header() -> None:
    """100 versions of 1 MiB would take a thread of the leader 20 s, also if nothing is to be registered."""
    texts = [_documented(number) for number in range(limits.SCHEMA_COMPARED_BYTES_MAX // 700_000 + 1)]

    def needs_header(count: int) -> bool:
        versions = {
            number: StoredVersion(text.kind, text.hash(), Schema(SchemaKind.AVRO, text.text).hash(), 0)
            for number, text in enumerate(texts[:count], 1)
        }
        by_hash = {text.hash(): text for text in texts}
        (found,) = judge(Registration("s", ("s.>",), texts[0], (Wanted(Typed("s.a"), ""),), {"s.a": versions}, by_hash))
        return found.needs_header

    assert not needs_header(2)
    assert needs_header(len(texts))


def _documented(number: int) -> StoredText:
    doc = f"{number} " + "x" * 700_000
    return StoredText("avro", json.dumps({"type": "record", "name": "A", "fields": [], "doc": doc}))


def test_a_framing_that_the_kind_does_not_have_is_refused() -> None:
    """Else the first message would raise where it is checked."""
    entries = (Wanted(Typed("s.a", framing=ValueFraming.FRUGAL), ""),)
    with pytest.raises(RemoteError, match="Avro values are not framed as frugal-v0"):
        judge(Registration("s", ("s.>",), StoredText("avro", '"long"'), entries, {}, {}))
