"""Each rule finds the smallest change that it is for, and nothing else is found; Thrift's bytes behave as rules say."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from penstock.idl.compatibility import (
    RULES,
    Change,
    Impact,
    Mode,
    breaking,
    compare,
    compare_all,
    compare_types,
)
from penstock.idl.model import NOWHERE, Document, ListOf, Program, Reference, Scalar, ScalarKind
from tests.contracts import program
from tests.protobuf_changes import PROTOBUF_CHANGES


class Case(NamedTuple):
    """Two texts, and what is found: rules with subjects."""

    old: str
    new: str
    found: dict[str, str]


def case(rule: str, subject: str, old: str, new: str, **others: str) -> object:
    return pytest.param(Case(old, new, {rule: subject, **{k.replace("_", "-"): v for k, v in others.items()}}), id=rule)


def struct(fields: str, *, kind: str = "struct", more: str = "") -> str:
    return f"{kind} S {{ {fields} }}\n{more}"


def service(methods: str, more: str = "exception E { 1: i32 a }\nexception F { 1: string b }") -> str:
    return f"{more}\nservice T {{ {methods} }}"


def scope(body: str, prefix: str = "prefix a.{b}.{c}") -> str:
    return f"struct S {{ 1: i32 a }}\nscope Events {prefix} {{ {body} }}"


ENUM = "enum E {{ A = 0, B = 1{} }}"

CASES = [
    case("required-field-removed", "S.b", struct("1: i32 a; 2: required i32 b"), struct("1: i32 a")),
    case("field-removed", "S.b", struct("1: i32 a; 2: i32 b"), struct("1: i32 a")),
    case("optional-field-removed", "S.b", struct("1: i32 a; 2: optional i32 b"), struct("1: i32 a")),
    case("required-field-added", "S.b", struct("1: i32 a"), struct("1: i32 a; 2: required i32 b")),
    case("field-added", "S.b", struct("1: i32 a"), struct("1: i32 a; 2: i32 b")),
    case("declaration-added", "T", struct("1: i32 a"), struct("1: i32 a", more="struct T {}")),
    case("operation-added", "Events.Sold", scope("Made: S"), scope("Made: S Sold: S")),
    case(
        "field-added-between",
        "S.b",
        struct("1: i32 a; 3: i32 c"),
        struct("1: i32 a; 2: optional i32 b; 3: i32 c"),
    ),
    case("argument-added", "T.m.b", service("void m(1: i32 a)"), service("void m(1: i32 a, 2: i32 b)")),
    case("field-id-changed", "S.a", struct("1: i32 a"), struct("2: i32 a")),
    case("field-id-reused", "S.a", struct("1: i32 a"), struct("1: string b")),
    case("field-renamed", "S.a", struct("1: i32 a"), struct("1: i32 b")),
    case("field-made-required", "S.a", struct("1: i32 a"), struct("1: required i32 a")),
    case("field-no-longer-required", "S.a", struct("1: required i32 a"), struct("1: optional i32 a")),
    case("field-optionality-changed", "S.a", struct("1: i32 a"), struct("1: optional i32 a")),
    case("field-default-changed", "S.a", struct("1: i32 a = 1"), struct("1: i32 a = 2")),
    case("key-changed", "S", struct("1: i32 a (key); 2: i32 b"), struct("1: i32 a; 2: i32 b (key)")),
    case("type-changed", "S.a", struct("1: i32 a"), struct("1: i64 a")),
    case(
        "type-replaced",
        "S.a",
        struct("1: X a", more="struct X { 1: i32 a } struct Y { 1: i32 a }"),
        struct("1: Y a", more="struct X { 1: i32 a } struct Y { 1: i32 a }"),
    ),
    case("text-bytes-changed", "S.a", struct("1: string a"), struct("1: binary a")),
    case(
        "integer-became-enum",
        "S.a",
        struct("1: i32 a", more=ENUM.format("")),
        struct("1: E a", more=ENUM.format("")),
    ),
    case(
        "enum-became-integer",
        "S.a",
        struct("1: E a", more=ENUM.format("")),
        struct("1: i32 a", more=ENUM.format("")),
    ),
    case("struct-removed", "S", struct("1: i32 a"), ""),
    case("type-removed", "E", ENUM.format(""), ""),
    case("declaration-renamed", "S", struct("1: i32 a"), "struct R { 1: i32 a }"),
    case("struct-became-union", "S", struct("1: optional i32 a"), struct("1: i32 a", kind="union")),
    case("union-became-struct", "S", struct("1: i32 a", kind="union"), struct("1: optional i32 a")),
    case("exception-kind-changed", "S", struct("1: i32 a"), struct("1: i32 a", kind="exception")),
    case(
        "union-variant-added",
        "S.b",
        struct("1: i32 a", kind="union"),
        struct("1: i32 a; 2: i32 b", kind="union"),
    ),
    case(
        "union-variant-removed",
        "S.b",
        struct("1: i32 a; 2: i32 b", kind="union"),
        struct("1: i32 a", kind="union"),
    ),
    case("enum-value-removed", "E.C", ENUM.format(", C = 2"), ENUM.format("")),
    case("enum-value-renumbered", "E.C", ENUM.format(", C = 2"), ENUM.format(", C = 3")),
    case("enum-value-renamed", "E.C", ENUM.format(", C = 2"), ENUM.format(", D = 2")),
    case("enum-value-added", "E.C", ENUM.format(""), ENUM.format(", C = 2")),
    case("constant-removed", "C", "const i32 C = 1", ""),
    case("constant-type-changed", "C", "const i32 C = 1", "const i64 C = 1"),
    case("constant-value-changed", "C", "const i32 C = 1", "const i32 C = 2"),
    case("namespace-changed", "py", "namespace py a.b", "namespace py a.c"),
    case("scope-removed", "Events", scope("Made: S"), "struct S { 1: i32 a }"),
    case("scope-prefix-changed", "Events", scope("Made: S"), scope("Made: S", "prefix a.{b}")),
    case("scope-variables-exchanged", "Events", scope("Made: S"), scope("Made: S", "prefix a.{c}.{b}")),
    case("scope-variable-renamed", "Events", scope("Made: S"), scope("Made: S", "prefix a.{b}.{d}")),
    case("operation-removed", "Events.Gone", scope("Made: S, Gone: S"), scope("Made: S")),
    case(
        "operation-stream-changed",
        "Events.Made",
        scope('Made: S (stream = "orders")'),
        scope('Made: S (stream = "sales")'),
    ),
    case("operation-stream-added", "Events.Made", scope("Made: S"), scope('Made: S (stream = "orders")')),
    case("service-removed", "T", service("void m()"), service("").partition("service")[0]),
    case(
        "service-extends-changed",
        "U",
        service("void m()") + "service V extends T { } service U extends T { }",
        service("void m()") + "service V extends T { } service U extends V { }",
    ),
    case("method-removed", "T.n", service("void m() void n()"), service("void m()")),
    case("method-renamed", "T.Ping", service("void Ping()"), service("void ping()")),
    case("method-added", "T.n", service("void m()"), service("void m() void n()")),
    case("method-oneway-changed", "T.m", service("void m()"), service("oneway void m()")),
    case("method-returns-a-value-now", "T.m", service("void m()"), service("i32 m()")),
    case("method-returns-nothing-now", "T.m", service("i32 m()"), service("void m()")),
    case("method-idempotence-removed", "T.m", service("void m() (idempotent)"), service("void m()")),
    case("exception-added", "T.m.e", service("i32 m()"), service("i32 m() throws (1: E e)")),
    case("exception-added-to-void", "T.m.e", service("void m()"), service("void m() throws (1: E e)")),
    case("exception-removed", "T.m.e", service("i32 m() throws (1: E e)"), service("i32 m()")),
    case("exception-removed-from-void", "T.m.e", service("void m() throws (1: E e)"), service("void m()")),
]


def rules(changes: list[Change]) -> dict[str, str]:
    found = {each.rule.id: each.subject for each in changes}
    assert len(found) == len(changes), changes
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_rule_finds_its_change_and_no_other_rule_does(case: Case) -> None:
    assert rules(compare(program(case.old), program(case.new))) == case.found


def test_each_rule_has_a_case() -> None:
    here = {rule for each in CASES for rule in each.values[0].found}  # type: ignore[attr-defined]
    of_protobuf = {rule for each in PROTOBUF_CHANGES for rule in each.found}
    assert here | of_protobuf | {"declaration-moved"} == {*RULES}


@pytest.mark.parametrize("case", CASES)
def test_a_contract_has_not_changed_against_itself(case: Case) -> None:
    for text in (case.old, case.new):
        assert compare(program(text), program(text)) == []


@pytest.mark.parametrize(
    ("rule", "backward", "forward", "full"),
    [
        ("required-field-added", True, False, True),
        ("field-removed", False, True, True),
        ("type-changed", True, True, True),
        ("field-renamed", False, False, False),
        ("enum-value-added", False, False, False),
    ],
)
def test_a_mode_refuses_what_breaks_its_direction(rule: str, backward: bool, forward: bool, full: bool) -> None:
    found = next(each.values[0] for each in CASES if rule in each.values[0].found)  # type: ignore[attr-defined]
    changes = compare(program(found.old), program(found.new))
    refused = tuple(bool(breaking(changes, mode)) for mode in (Mode.BACKWARD, Mode.FORWARD, Mode.FULL))
    assert refused == (backward, forward, full)


def test_source_code_counts_if_that_is_asked_for() -> None:
    changes = compare(program(struct("1: i32 a")), program(struct("1: i32 b")))
    assert breaking(changes) == []
    assert breaking(changes, source=True) == changes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param(struct("1: i32 a"), struct("1: i32 a; 2: optional i32 b"), id="an optional field"),
        pytest.param(struct("1: i32 a"), struct("1: i32 a; 2: i32 b"), id="a field of default requiredness"),
        pytest.param(struct("1: i32 a"), "/** Text. */ " + struct("1: i32 a // more\n"), id="comments"),
        pytest.param(struct("1: i32 a; 2: i32 b"), struct("2: i32 b; 1: i32 a"), id="the order of fields"),
        pytest.param("struct A {} struct B {}", "struct B {} struct A {}", id="the order of declarations"),
        pytest.param(struct("1: byte a"), struct("1: i8 a"), id="byte and i8"),
        pytest.param(struct("1: i32 a"), struct("1: N a", more="typedef i32 N"), id="a typedef of the same type"),
        pytest.param(struct("1: i32 a = 7"), struct("1: i32 a = C", more="const i32 C = 7"), id="a named default"),
        pytest.param(
            ENUM.format("") + struct("1: E a = 1"), ENUM.format("") + struct("1: E a = E.B"), id="a named number"
        ),
        pytest.param(
            "const map<string, i32> C = {'a': 1, 'b': 2}",
            "const map<string, i32> C = {'b': 2, 'a': 1}",
            id="the order of a map",
        ),
        pytest.param(scope("Made: S"), scope("Made: S Sold: S"), id="an operation"),
        pytest.param("struct Events {} " + scope("A: S"), scope("A: S") + "struct Events {}", id="scope named as type"),
        pytest.param(
            service("void m()") + "service U extends T { void n() }",
            service("void m() void n()") + "service U extends T { }",
            id="a method that moves to the base",
        ),
    ],
)
def test_it_is_safe(old: str, new: str) -> None:
    assert breaking(compare(program(old), program(new)), source=True) == []


def test_what_is_added_is_told_where_it_is_new() -> None:
    old, new = program(struct("1: i32 a")), program("typedef i32 N\n" + struct("1: i32 a", more="scope New { A: S }"))
    changes = compare(old, new)
    assert [(each.subject, each.text) for each in changes] == [("N", "typedef is added"), ("New", "scope is added")]
    assert [(each.old, each.new.line) for each in changes] == [(NOWHERE, 1), (NOWHERE, 3)]
    assert compare_types(old, Reference("S"), new, Reference("S")) == []


def test_what_took_the_place_of_another_is_not_told_as_new() -> None:
    """A typedef of what was a struct, and a declaration that has moved."""
    old = program("struct A { 1: i32 a }\n" + struct("1: A a"))
    assert rules(compare(old, program("struct B { 1: i32 a }\ntypedef B A\n" + struct("1: A a")))) == {}


def test_a_change_names_what_and_where() -> None:
    old = program("struct Order {\n  1: string id\n  2: i32 total\n}\n", file="old/orders.frugal")
    new = program("struct Order {\n  1: string id\n\n    2: i64 total\n}\n", file="new/orders.frugal")
    (change,) = compare(old, new)
    assert change.text == "field 2: i32 is i64 now"
    assert (str(change.old), str(change.new)) == ("old/orders.frugal:3:3", "new/orders.frugal:4:5")
    assert change.impact is Impact.BACKWARD | Impact.FORWARD
    assert change.impact.words == ("backward", "forward")
    assert change.rule.why
    assert change.rule.advice


def test_what_is_gone_is_nowhere_in_the_new_file() -> None:
    (change,) = compare(program(struct("1: i32 a")), program(""))
    assert change.new == NOWHERE


def test_changes_come_in_the_order_of_the_old_file() -> None:
    old = program("const i32 C = 1\nstruct S { 1: i32 a }\nenum E { A = 0 }\n")
    new = program("const i32 C = 2\nenum E { B = 0 }\nstruct S { 1: i64 a }\n")
    assert [each.old.line for each in compare(old, new)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("old", "new", "rule", "text"),
    [
        ("list<i32>", "set<i32>", "type-changed", "list<i32> is set<i32> now"),
        ("list<i32>", "list<i64>", "type-changed", "list<i32> is list<i64> now"),
        ("map<string, i32>", "map<i32, i32>", "type-changed", "map<string, i32> is map<i32, i32> now"),
        ("map<i32, X>", "map<i32, Y>", "type-replaced", "map<i32, X> is map<i32, Y> now"),
        ("X", "i32", "type-changed", "X is i32 now"),
        ("X", "E", "type-changed", "X is E now"),
        ("E", "G", "type-replaced", "E is G now"),
        ("N", "i64", "type-changed", "N is i64 now"),
        ("set<binary>", "set<string>", "text-bytes-changed", "set<binary> is set<string> now"),
    ],
)
def test_types_are_compared_as_the_wire_has_them(old: str, new: str, rule: str, text: str) -> None:
    more = "struct X { 1: i32 a } struct Y { 1: i32 a } enum E { A = 0 } enum G { A = 0 } typedef i32 N"
    (change,) = compare(program(struct(f"1: {old} a", more=more)), program(struct(f"1: {new} a", more=more)))
    assert (change.rule.id, change.text) == (rule, f"field 1: {text}")


def test_a_typedef_of_another_type_is_one_change_and_its_uses_are_none() -> None:
    old, new = (struct("1: N a; 2: list<N> b", more=f"typedef {each} N") for each in ("i32", "i64"))
    (change,) = compare(program(old), program(new))
    assert (change.rule.id, change.subject) == ("type-changed", "N")


def test_a_typedef_may_take_the_place_of_a_struct() -> None:
    old = struct("1: X a", more="struct X { 1: i32 a }")
    new = struct("1: X a", more="typedef Y X\nstruct Y { 1: i32 a }")
    assert breaking(compare(program(old), program(new))) == []
    changed = struct("1: X a", more="typedef Y X\nstruct Y { 1: string a }")
    assert rules(breaking(compare(program(old), program(changed)))) == {"type-changed": "X.a"}


def test_a_type_with_another_name_is_compared_field_by_field() -> None:
    old = struct("1: X a", more="struct X { 1: i32 a }")
    assert rules(compare(program(old), program(struct("1: Y a", more="struct Y { 1: i32 a; 2: i32 b }")))) == {
        "declaration-renamed": "X",
        "field-added": "X.b",
    }
    assert rules(compare(program(old), program(struct("1: Y a", more="struct Y { 1: i64 a }")))) == {
        "declaration-renamed": "X",
        "type-changed": "X.a",
    }


def test_two_types_that_take_the_place_of_one_are_both_compared() -> None:
    old = struct("1: X a; 2: X b", more="struct X { 1: i32 a }")
    new = struct("1: Y a; 2: Z b", more="struct Y { 1: i32 a } struct Z { 1: string a }")
    assert rules(breaking(compare(program(old), program(new)))) == {"type-changed": "X.a"}


def test_exchanged_fields_lose_both_values() -> None:
    found = compare(program(struct("1: i32 a; 2: i32 b")), program(struct("2: i32 a; 1: i32 b")))
    assert [(each.rule.id, each.subject) for each in found] == [
        ("field-id-changed", "S.a"),
        ("field-id-changed", "S.b"),
    ]


def test_a_name_that_differs_by_case_is_told() -> None:
    (field,) = compare(program(struct("1: i32 total")), program(struct("1: i32 Total")))
    assert (field.rule.id, field.text) == ("field-renamed", "field 1 is Total now, by case only")
    other, operation = compare(program(scope("Made: S")), program(scope("made: S")))
    assert (operation.rule.id, operation.text) == ("operation-removed", "operation is removed; made differs by case")
    assert other.rule.id == "operation-added"
    added, removed = compare(program(service("void placeOrder()")), program(service("void PlaceORDER()")))
    assert removed.text == "method is removed; PlaceORDER differs by case"
    assert (removed.rule.id, added.rule.id) == ("method-removed", "method-added")


# Includes

THING = "struct Thing { 1: i32 a }"
USES_BASE = 'include "base.frugal"\nstruct S { 1: base.Thing a }'


def test_types_of_included_files_are_compared() -> None:
    old, new = program(USES_BASE, base=THING), program(USES_BASE, base="struct Thing { 1: string a }")
    (change,) = compare(old, new)
    assert (change.rule.id, change.subject, str(change.old)) == ("type-changed", "Thing.a", "base.frugal:1:16")


def test_an_include_with_another_name_changes_nothing() -> None:
    new = program(USES_BASE.replace("base", "common"), common=THING)
    assert compare(program(USES_BASE, base=THING), new) == []
    changed = program(USES_BASE.replace("base", "common"), common=THING.replace("i32", "i64"))
    assert rules(compare(program(USES_BASE, base=THING), changed)) == {"type-changed": "Thing.a"}


def test_a_type_may_move_to_an_included_file() -> None:
    old = program(f"{THING}\nstruct S {{ 1: Thing a }}")
    (change,) = compare(old, program(USES_BASE, base=THING))
    assert (change.rule.id, change.text) == ("declaration-moved", "struct is in base.frugal now")
    found = compare(old, program(USES_BASE, base=THING.replace("i32", "i64")))
    assert rules(found) == {"declaration-moved": "Thing", "type-changed": "Thing.a"}


def test_equally_named_types_of_two_files_are_not_the_same() -> None:
    both = 'include "a.frugal"\ninclude "b.frugal"\nstruct S {{ 1: {}.Thing a }}'
    files = {"a": THING, "b": THING}
    assert rules(compare(program(both.format("a"), **files), program(both.format("b"), **files))) == {
        "type-replaced": "S.a"
    }


def test_a_file_that_two_others_include_is_compared_once() -> None:
    top = 'include "a.frugal"\ninclude "b.frugal"\n'
    files = {"a": 'include "base.frugal"', "b": 'include "base.frugal"'}
    old, new = (program(top, **files, base=base) for base in (THING, THING.replace("i32", "i64")))
    assert rules(compare(old, new)) == {"type-changed": "Thing.a"}


def test_methods_of_a_base_in_another_file_are_compared_there() -> None:
    text = 'include "base.frugal"\nservice T extends base.Base { void m() }'
    old = program(text, base="service Base { void ping() void pong() }")
    (change,) = compare(old, program(text, base="service Base { void ping() }"))
    assert (change.subject, str(change.old)) == ("Base.pong", "base.frugal:1:33")


def test_a_service_that_loses_its_base_loses_the_methods() -> None:
    old = "service Base { void ping() }\nservice T extends Base { void m() }"
    new = "service Base { void ping() }\nservice T { void m() }"
    assert rules(compare(program(old), program(new))) == {"service-extends-changed": "T", "method-removed": "T"}


def test_of_many_lost_methods_some_are_named() -> None:
    methods = " ".join(f"void m{n}()" for n in range(7))
    old = f"service Base {{ {methods} }}\nservice T extends Base {{ void own() }}"
    new = f"service Base {{ {methods} }}\nservice T {{ void own() void m0() }}"
    (lost,) = breaking(compare(program(old), program(new)))
    assert lost.text == "inherited methods are removed: m1, m2, m3, m4, m5 and 1 more"


def test_a_method_that_is_changed_on_its_way_to_another_base_is_told_once() -> None:
    old = "service A { void m() }\nservice B {}\nservice T extends A {}\nservice U extends A {}"
    new = "service A {}\nservice B { i32 m() }\nservice T extends B {}\nservice U extends B {}"
    found = [(each.rule.id, each.subject) for each in breaking(compare(program(old), program(new)))]
    assert found == [("method-removed", "A.m"), ("method-returns-a-value-now", "A.m")]


# Details of rules


def test_namespaces_are_compared_as_a_language_sees_them() -> None:
    assert compare(program("namespace * a"), program("namespace * a\nnamespace py a")) == []
    assert {each.subject for each in compare(program("namespace * a"), program("namespace * b\nnamespace py a"))} == {
        "*"
    }


def test_values_of_an_enum_that_exchange_their_names_are_renumbered() -> None:
    found = compare(program("enum E { A = 0, B = 1 }"), program("enum E { A = 1, B = 0 }"))
    assert [each.rule.id for each in found] == ["enum-value-renumbered"] * 2


def test_a_scope_gives_its_operations_their_stream() -> None:
    old = 'struct S {} scope Events { Made: S } (stream = "orders")'
    assert compare(program(old), program('struct S {} scope Events { Made: S (stream = "orders") }')) == []
    moved = 'struct S {} scope Events { Made: S (stream = "sales") } (stream = "orders")'
    assert rules(compare(program(old), program(moved))) == {"operation-stream-changed": "Events.Made"}


def test_a_key_of_an_operation_is_compared() -> None:
    old = scope('Made: S (stream = "orders", key = "a")')
    assert rules(compare(program(old), program(scope('Made: S (stream = "orders")')))) == {"key-changed": "Events.Made"}


def test_a_key_may_be_named_by_the_field_or_by_the_operation() -> None:
    marked = "struct S { 1: i32 a (key); 2: i32 b }\nscope Events { Made: S }"
    named = marked.replace("Made: S", 'Made: S (key = "a")')
    assert compare(program(marked), program(named)) == []
    assert rules(compare(program(marked), program(named.replace('"a"', '"b"')))) == {"key-changed": "Events.Made"}


@pytest.mark.parametrize(("word", "rule"), [("key", "key-changed"), ("idempotent", "method-idempotence-removed")])
def test_an_annotation_that_says_false_is_none(word: str, rule: str) -> None:
    text = {"key": "struct S {{ 1: i32 a {} }}", "idempotent": "service T {{ void m() {} }}"}[word]
    without, off, on = (text.format(each) for each in ("", f'({word} = "False")', f"({word})"))
    assert compare(program(without), program(off)) == []
    assert [each.rule.id for each in compare(program(on), program(off))] == [rule]


def test_exceptions_are_compared_by_id() -> None:
    old, new = service("i32 m() throws (1: E e)"), service("i32 m() throws (2: E e)")
    assert rules(compare(program(old), program(new))) == {"field-id-changed": "T.m.e"}
    replaced = service("i32 m() throws (1: F e)")
    assert rules(compare(program(old), program(replaced))) == {"type-replaced": "T.m.e"}


def test_the_encoding_of_protobuf_counts() -> None:
    def with_encoding(encoding: str) -> Program:
        from dataclasses import replace

        (plain,) = program(struct("1: i32 a")).document.types
        fields = tuple(replace(each, encoding=encoding) for each in plain.fields)  # type: ignore[union-attr]
        return Program(Document("a.proto", definitions=(replace(plain, fields=fields),)), {})  # type: ignore[call-arg]

    assert rules(compare(with_encoding("sint32"), with_encoding("fixed32"))) == {"field-encoding-changed": "S.a"}
    assert compare(with_encoding("sint32"), with_encoding("sint32")) == []


# One type and what it is made of


def test_only_what_a_type_is_made_of_is_compared() -> None:
    old = (
        "struct A { 1: B b; 2: N n } struct B { 1: i32 a } struct C { 1: i32 a } typedef i32 N\nservice T { void m() }"
    )
    new = "struct A { 1: B b; 2: N n } struct B { 1: i64 a } struct C { 1: i64 a } typedef i64 N"
    found = compare_types(program(old), Reference("A"), program(new), Reference("A"))
    assert [(each.rule.id, each.subject) for each in found] == [("type-changed", "B.a"), ("type-changed", "N")]
    assert compare_types(program(old), Reference("A"), program(old), Reference("A")) == []


def test_types_of_included_files_are_reached() -> None:
    old, new = program(USES_BASE, base=THING), program(USES_BASE, base=THING.replace("i32", "i64"))
    (change,) = compare_types(old, ListOf(Reference("S")), new, ListOf(Reference("S")))
    assert (change.rule.id, change.subject) == ("type-changed", "Thing.a")


def test_another_type_is_a_change_of_the_type() -> None:
    made = program("struct A { 1: i32 a } struct B { 1: i32 a }")
    (change,) = compare_types(made, Reference("A"), made, Reference("B"))
    assert (change.rule.id, change.subject, change.text) == ("type-replaced", "A", "A is B now")
    (change,) = compare_types(made, Scalar(ScalarKind.I32), made, Scalar(ScalarKind.I64))
    assert (change.rule.id, change.subject) == ("type-changed", "i32")


def test_a_renamed_type_is_read_as_before() -> None:
    old, new = program("struct A { 1: i32 a }"), program("struct Z { 1: i32 a; 2: optional i32 b }")
    changes = compare_types(old, Reference("A"), new, Reference("Z"))
    assert rules(changes) == {"declaration-renamed": "A", "field-added": "A.b"}
    assert breaking(changes) == []


# Several versions


def test_an_id_that_is_used_again_is_found_among_all_versions() -> None:
    versions = [
        program(struct("1: i32 a; 2: optional i32 old")),
        program(struct("1: i32 a")),
        program(struct("1: i32 a; 2: optional string other")),
    ]
    assert breaking(compare(versions[-2], versions[-1])) == []
    assert [(against.version, against.change.rule.id) for against in compare_all(versions)] == [
        (1, "field-added"),
        (0, "field-id-reused"),
    ]


def test_a_change_against_several_versions_is_told_once_with_the_latest() -> None:
    versions = [program(struct("1: i32 a")), program(struct("1: i32 a")), program(struct("1: i64 a"))]
    (against,) = compare_all(versions)
    assert against.version == 1


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_versions_have_no_changes(count: int) -> None:
    assert compare_all([program(struct("1: i32 a"))] * count) == []


# Hostile contracts


def test_a_long_constant_is_compared_as_it_is_written() -> None:
    """C13 has 2 ** 14 values; many defaults that name it would cost that much each."""
    lines, kind = ["const list<i32> C0 = [1, 1]"], "list<i32>"
    for number in range(1, 14):
        kind = f"list<{kind}>"
        lines.append(f"const {kind} C{number} = [C{number - 1}, C{number - 1}]")
    old = "\n".join([*lines, f"const {kind} D = C13"])
    assert compare(program(old), program(old)) == []
    assert rules(compare(program(old), program(old.replace("D = C13", "D = [C12, C12]")))) == {
        "constant-value-changed": "D"
    }


MANY = 4_000
"""So many that a search of all new ones for each old one is seen in the time of a test."""


@pytest.mark.parametrize(
    ("each", "rule"),
    [
        ("struct {name}{n} {{ 1: i32 a }}", "declaration-renamed"),
        ("struct {name}{n} {{ 1: i32 {name} }}", "struct-removed"),
        ("const i32 {name}{n} = 1", "constant-removed"),
        ("namespace {name}{n} x", "namespace-changed"),
    ],
)
def test_many_declarations_that_are_gone_are_compared_in_bounded_time(each: str, rule: str) -> None:
    old, new = ("\n".join(each.format(name=name, n=n) for n in range(MANY)) for name in "AB")
    found = compare(program(old), program(new))
    assert {each.rule.id for each in found} - {"declaration-added"} == {rule}
    assert len(found) >= MANY


def test_many_services_with_one_large_base_are_compared_in_bounded_time() -> None:
    base = "service Base { " + " ".join(f"void m{n}()" for n in range(1_000)) + " }\nservice Same extends Base {}\n"
    old, same, gone = (
        base + "\n".join(f"service T{n} {each} {{}}" for n in range(500))
        for each in ("extends Base", "extends Same", "")
    )
    assert compare(program(old), program(old)) == []
    assert {each.rule.id for each in compare(program(old), program(same))} == {"service-extends-changed"}
    assert len(breaking(compare(program(old), program(gone)))) == 500


@pytest.mark.parametrize("text", ["service T {{ {} }}", "struct S {{}} scope T {{ {} }}"])
def test_many_members_that_are_gone_are_compared_in_bounded_time(text: str) -> None:
    member = "void {}{}()" if "service" in text else "{}{}: S"
    old, new = (text.format("\n".join(member.format(name, n) for n in range(MANY))) for name in "AB")
    found = breaking(compare(program(old), program(new)))
    assert {each.rule.id for each in found} <= {"method-removed", "operation-removed"}
    assert len(found) == MANY
