"""Changes that only Protobuf has, and those that Buf knows: each is named by its rules, and no other rule is found."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from penstock.idl.compatibility import compare
from tests.protobuf_changes import PROTOBUF_CHANGES, ProtobufChange
from tests.protobuf_contracts import message_class, protobuf_program

pytest.importorskip("google.protobuf")


def found(old: str, new: str, syntax: str = "proto3") -> list[tuple[str, str, str]]:
    changes = compare(protobuf_program(old, syntax=syntax), protobuf_program(new, syntax=syntax))
    return [(each.rule.id, each.subject, each.text) for each in changes]


@pytest.mark.parametrize("case", PROTOBUF_CHANGES, ids=lambda each: each.change)
def test_a_change_is_named(case: ProtobufChange) -> None:
    assert {rule: subject for rule, subject, _ in found(case.old, case.new, case.syntax)} == case.found
    assert len(found(case.old, case.new, case.syntax)) == len(case.found)
    assert found(case.old, case.old, case.syntax) == found(case.new, case.new, case.syntax) == []


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        # Nothing can be set beside it: the others of the oneof are new, or gone.
        ("choice: int32 a = 1", "choice: int32 a = 1; choice: int32 b = 2", {}),
        ("optional int32 a = 1", "choice: int32 a = 1; choice: int32 b = 2", {"M.a": "oneof-changed"}),
        ("choice: int32 a = 1; choice: int32 b = 2", "optional int32 a = 1; reserved 2", {"M.a": "oneof-changed"}),
        # All of one oneof move together.
        (
            "x: int32 a = 1; x: int32 b = 2",
            "y: int32 a = 1; y: int32 b = 2",
            {"M.a": "oneof-changed", "M.b": "oneof-changed"},
        ),
        # Two that were on their own, or of two oneofs
        (
            "optional int32 a = 1; optional int32 b = 2",
            "x: int32 a = 1; x: int32 b = 2",
            {"M.a": "oneof-joined", "M.b": "oneof-joined"},
        ),
        ("x: int32 a = 1; y: int32 b = 2", "x: int32 a = 1; x: int32 b = 2", {"M.b": "oneof-joined"}),
        (
            "x: int32 a = 1; x: int32 b = 2",
            "optional int32 a = 1; optional int32 b = 2",
            {"M.a": "oneof-left", "M.b": "oneof-left"},
        ),
        # Out of the way of one and into the way of another
        (
            "x: int32 a = 1; x: int32 b = 2; y: int32 c = 3",
            "x: int32 a = 1; y: int32 b = 2; y: int32 c = 3",
            {"M.b": "oneof-joined oneof-left"},
        ),
    ],
)
def test_oneofs(old: str, new: str, rules: dict[str, str]) -> None:
    told: dict[str, str] = {}
    for rule, subject, _ in sorted(found(f"message M {{ {old} }}", f"message M {{ {new} }}")):
        told[subject] = f"{told[subject]} {rule}" if subject in told else rule
    assert {
        subject: rule for subject, rule in told.items() if rule not in ("optional-field-removed", "field-added")
    } == rules


def test_what_is_said_of_oneofs_is_what_googles_library_does() -> None:
    """All ways in which three fields can be in two oneofs, and all messages that a writer can make of them."""
    groups = [*product(("optional ", "x: ", "y: "), repeat=3)]
    bodies = [
        "; ".join(f"{group}int32 {name} = {at}" for at, (group, name) in enumerate(zip(each, "abc", strict=True), 1))
        for each in groups
    ]
    classes = [message_class(f"message M {{ {body} }}", "shop.M") for body in bodies]
    programs = [protobuf_program(f"message M {{ {body} }}") for body in bodies]
    subsets = [each for size in range(4) for each in combinations("abc", size)]
    for writer, reader in product(range(len(groups)), repeat=2):
        loses = False
        for names in subsets:
            written = classes[writer](**dict.fromkeys(names, 7))
            kept = {each.name for each, _ in written.ListFields()}
            read = classes[reader].FromString(written.SerializeToString())
            loses = loses or {each.name for each, _ in read.ListFields()} != kept
        rules = {each.rule.id for each in compare(programs[writer], programs[reader])}
        assert ("oneof-joined" in rules) is loses, (bodies[writer], bodies[reader])
        back = {each.rule.id for each in compare(programs[reader], programs[writer])}
        assert ("oneof-left" in back) is loses, (bodies[writer], bodies[reader])


@pytest.mark.parametrize(
    ("old", "new", "texts"),
    [
        ("reserved 2 to 9", "reserved 4 to 5; reserved 8", ["reserved 2 to 3", "reserved 6 to 7", "reserved 9"]),
        ("reserved 2; reserved 3; reserved 7", "reserved 3", ["reserved 2", "reserved 7"]),
        ("reserved 2 to 4; reserved 5 to 9", "reserved 2 to 20", []),
        ("reserved b; reserved c", "reserved c", ['reserved "b"']),
        ("reserved 2 to 536870911", "reserved 4 to 536870911", ["reserved 2 to 3"]),
    ],
)
def test_reservations_that_are_removed(old: str, new: str, texts: list[str]) -> None:
    changes = found(f"message M {{ int32 a = 1; {old} }}", f"message M {{ int32 a = 1; {new} }}")
    assert [text.removesuffix(" is removed") for _, _, text in changes] == texts


def test_what_an_enum_reserves() -> None:
    changes = found("enum E { A = 0; reserved 2 to 4; reserved B }", "enum E { A = 0; B = 3; reserved 2; reserved 4 }")
    assert [(rule, subject) for rule, subject, _ in changes if rule != "enum-value-added"] == [
        ("reserved-name-used", "E.B"),
        ("reserved-number-used", "E.B"),
    ]


def test_many_reservations_are_compared_in_bounded_time() -> None:
    every_other = "; ".join(f"reserved {number}" for number in range(2, 40_000, 2))
    fields = "; ".join(f"int32 f{number} = {number}" for number in range(2, 20_000, 2))
    changes = found(f"message M {{ {every_other} }}", f"message M {{ {fields} }}")
    assert len([rule for rule, _, _ in changes if rule != "field-added"]) == 9_999 + 10_000
