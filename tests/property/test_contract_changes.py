"""What the check of contracts calls compatible is read by Apache Thrift's own protocols, and what it refuses is not.

A struct is drawn, and changes of it; both versions are written as IDL for the check, and as specs for Thrift. Its
compiled protocols are used: those in Python read an unknown binary field as text, and fail if it is none (thrift 0.25).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.protocol.TCompactProtocol import TCompactProtocolAccelerated
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from penstock.idl.compatibility import Mode, breaking, compare
from tests.contracts import program

MORE = "enum E { A = 0, B = 1 } struct P { 1: i32 x } struct Q { 1: i32 x } typedef i32 N\n"


class Value:
    """A value of a struct, whose fields Thrift reads and sets by its spec."""

    spec: tuple[Any, ...] = ()

    def __init__(self, **values: object) -> None:
        for field in filter(None, self.spec):
            setattr(self, field[2], values.get(field[2]))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self)))


class P(Value):
    spec = (None, (1, TType.I32, "x", None, None))


class Q(Value):
    spec = (None, (1, TType.I32, "x", None, None))


I32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(max_size=5)

TYPES: dict[str, tuple[int, object, st.SearchStrategy[Any]]] = {
    "bool": (TType.BOOL, None, st.booleans()),
    "i8": (TType.BYTE, None, st.integers(-128, 127)),
    "i16": (TType.I16, None, st.integers(-(2**15), 2**15 - 1)),
    "i32": (TType.I32, None, I32),
    "N": (TType.I32, None, I32),
    "i64": (TType.I64, None, st.integers(-(2**63), 2**63 - 1)),
    "E": (TType.I32, None, st.sampled_from([0, 1])),
    "double": (TType.DOUBLE, None, st.floats(allow_nan=False)),
    "string": (TType.STRING, "UTF8", TEXT),
    "binary": (TType.STRING, "BINARY", st.binary(max_size=5)),
    "list<i32>": (TType.LIST, (TType.I32, None, False), st.lists(I32, max_size=3)),
    "set<i32>": (TType.SET, (TType.I32, None, False), st.sets(I32, max_size=3)),
    "list<string>": (TType.LIST, (TType.STRING, "UTF8", False), st.lists(TEXT, max_size=3)),
    "map<string, i32>": (
        TType.MAP,
        (TType.STRING, "UTF8", TType.I32, None, False),
        st.dictionaries(TEXT, I32, max_size=3),
    ),
    "P": (TType.STRUCT, [P, P.spec], st.builds(P, x=I32)),
    "Q": (TType.STRUCT, [Q, Q.spec], st.builds(Q, x=I32)),
}
"""Types by their IDL: type and arguments for Thrift, and values."""

NEAR = {"string": "binary", "binary": "string", "i32": "E", "E": "N", "N": "i64", "list<i32>": "set<i32>", "P": "Q"}
"""Types that are easily taken for one another."""


@dataclass(frozen=True)
class Member:
    id: int
    name: str
    type: str
    requiredness: str = ""


Members = tuple[Member, ...]


def idl(members: Members) -> str:
    fields = "\n".join(f"{each.id}: {each.requiredness} {each.type} {each.name}" for each in members)
    return f"{MORE}struct S {{\n{fields}\n}}\n"


def of(members: Members) -> type[Value]:
    """The class of a version: its spec has a place for each id."""
    found: list[Any] = [None] * (max((each.id for each in members), default=0) + 1)
    for each in members:
        ttype, arguments, _ = TYPES[each.type]
        found[each.id] = (each.id, ttype, each.name, arguments, None)
    return type("S", (Value,), {"spec": tuple(found)})


def reread(written: Value, version: type[Value], protocol: Callable[[Any], Any]) -> Value:
    encoded = protocol(TMemoryBuffer())._fast_encode(written, [type(written), written.spec])
    value = version()
    reader = protocol(TMemoryBuffer(encoded))
    reader._fast_decode(value, reader, [version, version.spec])
    return value


PROTOCOLS = [TBinaryProtocolAccelerated, TCompactProtocolAccelerated]

_requiredness = st.sampled_from(["", "required", "optional"])
_members = st.lists(
    st.builds(Member, st.integers(1, 6), st.sampled_from("abcdef"), st.sampled_from([*TYPES]), _requiredness),
    max_size=5,
    unique_by=(lambda each: each.id, lambda each: each.name),
).map(tuple)


@st.composite
def versions(draw: st.DrawFn) -> tuple[Members, Members]:
    """A struct, and the same with some members changed, gone or new."""
    old = draw(_members)
    new: list[Member] = []
    for each in old:
        kind = draw(st.sampled_from(["same", "same", "gone", "type", "near", "name", "reuse", "id", "requiredness"]))
        if kind == "gone":
            continue
        if kind in ("type", "reuse"):
            each = replace(each, type=draw(st.sampled_from([*TYPES])))
        if kind == "near":
            each = replace(each, type=NEAR.get(each.type, each.type))
        if kind in ("name", "reuse"):
            each = replace(each, name=draw(st.sampled_from("abcdefgh")))
        if kind == "id":
            each = replace(each, id=draw(st.integers(1, 8)))
        if kind == "requiredness":
            each = replace(each, requiredness=draw(_requiredness))
        new.append(each)
    new += draw(_members)
    unique = {each.id: each for each in reversed(new)}
    return old, tuple({each.name: each for each in unique.values()}.values())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(st.data())
def test_what_is_compatible_is_read(protocol: Any, data: st.DataObject) -> None:
    old, new = data.draw(versions())
    changes = compare(program(idl(old)), program(idl(new)))
    for mode, written_by, read_by in ((Mode.BACKWARD, old, new), (Mode.FORWARD, new, old)):
        if breaking(changes, mode):
            continue
        values = {each.name: data.draw(TYPES[each.type][2]) for each in written_by}
        written = of(written_by)(**values)
        value = reread(written, of(read_by), protocol)
        names = {each.id: each.name for each in written_by}
        for each in read_by:
            expected = values[names[each.id]] if each.id in names else None
            assert getattr(value, each.name) == expected
            assert each.id in names or each.requiredness != "required", "the reader would refuse it"


@given(_members, st.sampled_from([*TYPES]), st.sampled_from(["", "optional"]))
def test_a_new_field_that_is_not_required_never_breaks(old: Members, kind: str, requiredness: str) -> None:
    new = (*old, Member(7, "fresh", kind, requiredness))
    assert breaking(compare(program(idl(old)), program(idl(new))), source=True) == []


@given(_members)
def test_a_contract_is_compatible_with_itself(members: Members) -> None:
    assert compare(program(idl(members)), program(idl(tuple(reversed(members))))) == []


@given(versions())
def test_exchanged_versions_exchange_the_directions(pair: tuple[Members, Members]) -> None:
    """Apart from a removed field that was always written: old data lacks an added one, which is expected of it."""
    old, new = pair
    there, back = (compare(program(idl(a)), program(idl(b))) for a, b in ((old, new), (new, old)))
    forward = [each for each in breaking(there, Mode.FORWARD) if each.rule.id != "field-removed"]
    assert bool(forward) is bool(breaking(back, Mode.BACKWARD))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("i32", "i64", 5),
        ("i64", "i32", 5),
        ("i32", "string", 5),
        ("bool", "i8", True),
        ("list<i32>", "set<i32>", [5]),
        ("list<i32>", "list<string>", [5]),
        ("P", "i32", P(x=5)),
        ("string", "list<i32>", "text"),
    ],
)
def test_a_value_of_a_changed_type_is_not_read(protocol: Any, old: str, new: str, value: object) -> None:
    was, now = (Member(1, "a", old),), (Member(1, "a", new),)
    assert [each.rule.id for each in compare(program(idl(was)), program(idl(now)))] == ["type-changed"]
    try:
        found = reread(of(was)(a=value), of(now), protocol).a  # type: ignore[attr-defined]
    except (EOFError, ValueError, TypeError):
        return
    assert found != value


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bytes_that_are_no_text_are_lost_as_text(protocol: Any) -> None:
    was, now = (Member(1, "a", "binary"),), (Member(1, "a", "string"),)
    assert [each.rule.id for each in compare(program(idl(was)), program(idl(now)))] == ["text-bytes-changed"]
    text = reread(of(was)(a=b"\xff"), of(now), protocol).a  # type: ignore[attr-defined]
    assert text.encode() != b"\xff"


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_changed_id_loses_the_value_and_a_reused_one_mistakes_it(protocol: Any) -> None:
    was = of((Member(1, "a", "i32"),))(a=5)
    assert reread(was, of((Member(2, "a", "i32"),)), protocol).a is None  # type: ignore[attr-defined]
    assert reread(was, of((Member(1, "b", "i32"),)), protocol).b == 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_old_reader_of_a_new_variant_or_exception_sees_nothing(protocol: Any) -> None:
    """That is why an added exception of a void method is taken for success."""
    old, new = (Member(1, "a", "P"),), (Member(1, "a", "P"), Member(2, "b", "Q"))
    assert vars(reread(of(new)(b=Q(x=1)), of(old), protocol)) == {"a": None}
