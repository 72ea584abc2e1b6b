"""IDL files: each document is printed and read back the same; no text does more harm than an IdlError."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.idl.files import texts
from penstock.idl.lexer import clean_comment
from penstock.idl.linker import link
from penstock.idl.mistakes import MISTAKES_MAX, IdlError, Mistake
from penstock.idl.model import (
    NOWHERE,
    Annotation,
    Constant,
    ConstantList,
    ConstantMap,
    ConstantName,
    ConstantValue,
    Definition,
    Document,
    Enum,
    EnumValue,
    Field,
    Include,
    ListOf,
    Literal,
    MapOf,
    Method,
    Namespace,
    Operation,
    Reference,
    Requiredness,
    Scalar,
    ScalarKind,
    Scope,
    Service,
    SetOf,
    Struct,
    StructKind,
    Type,
    Typedef,
)
from penstock.idl.parser import parse
from penstock.idl.printer import document_text

T = TypeVar("T")
KINDS = [kind for kind in ScalarKind if kind not in (ScalarKind.U32, ScalarKind.U64, ScalarKind.FLOAT)]
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}9", fullmatch=True)  # no keyword ends so
PATHS = st.one_of(NAMES, st.tuples(NAMES, NAMES).map(".".join))
# A file has no lone surrogates; whatever else is in a literal is written raw or escaped.
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
COMMENTS = st.lists(st.text(st.sampled_from("ab *@/\t\\é\"'"), max_size=12), max_size=4).map(
    lambda lines: clean_comment("@" + "\n".join(lines).replace("*/", "b"))  # taken out, `**//` would end it
)
ANNOTATIONS = st.lists(st.builds(Annotation, PATHS, TEXTS), max_size=3).map(tuple)
TYPES: st.SearchStrategy[Type] = st.recursive(
    st.one_of(
        st.builds(Scalar, st.sampled_from(KINDS), ANNOTATIONS), st.builds(Reference, PATHS, annotations=ANNOTATIONS)
    ),
    lambda inner: st.one_of(
        st.builds(ListOf, inner, ANNOTATIONS),
        st.builds(SetOf, inner, ANNOTATIONS),
        st.builds(MapOf, inner, inner, ANNOTATIONS),
    ),
    max_leaves=5,
)
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
VALUES: st.SearchStrategy[ConstantValue] = st.recursive(
    st.one_of(st.builds(Literal, st.one_of(NUMBERS, TEXTS)), st.builds(ConstantName, PATHS)),
    lambda inner: st.one_of(
        st.builds(ConstantList, st.lists(inner, max_size=3).map(tuple)),
        st.builds(ConstantMap, st.lists(st.tuples(inner, inner), max_size=3).map(tuple)),
    ),
    max_leaves=6,
)


def named(members: st.SearchStrategy[T], max_size: int = 4) -> st.SearchStrategy[tuple[T, ...]]:
    """Members whose names differ, in whatever case."""
    return st.lists(members, max_size=max_size, unique_by=lambda each: each.name.lower()).map(tuple)  # type: ignore[attr-defined]


@st.composite
def fields(draw: st.DrawFn, kind: str) -> tuple[Field, ...]:
    """Fields of a struct, union or method, or exceptions of one."""
    optional = kind in ("union", "throws")
    found = draw(
        named(
            st.builds(
                Field,
                st.integers(1, 32_767),
                NAMES,
                TYPES,
                st.just(Requiredness.OPTIONAL) if optional else st.sampled_from(Requiredness),
                st.none() if optional else st.none() | VALUES,
                COMMENTS,
                ANNOTATIONS,
            )
        )
    )
    ids = draw(st.permutations(range(1, len(found) + 1)))
    return tuple(replace(each, id=number) for each, number in zip(found, ids, strict=True))


@st.composite
def methods(draw: st.DrawFn) -> Method:
    is_oneway = draw(st.booleans())
    return Method(
        draw(NAMES),
        None if is_oneway else draw(st.none() | TYPES),
        draw(fields("method")),
        () if is_oneway else draw(fields("throws")),
        is_oneway,
        draw(COMMENTS),
        draw(ANNOTATIONS),
    )


@st.composite
def scopes(draw: st.DrawFn) -> Scope:
    variables = draw(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,3}", fullmatch=True), max_size=3, unique=True))
    words = draw(st.lists(st.from_regex(r"[a-z0-9$'-][a-z0-9$#/'-]{0,3}", fullmatch=True), max_size=3))
    tokens = draw(st.permutations([*words, *(f"{{{name}}}" for name in variables)]))
    ordered = tuple(token[1:-1] for token in tokens if token.startswith("{"))
    operations = draw(named(st.builds(Operation, NAMES, TYPES, COMMENTS, ANNOTATIONS)))
    return Scope(draw(NAMES), ".".join(tokens), ordered, operations, draw(COMMENTS), draw(ANNOTATIONS))


@st.composite
def structs(draw: st.DrawFn) -> Struct:
    kind = draw(st.sampled_from(StructKind))
    return Struct(draw(NAMES), kind, draw(fields(kind.value)), draw(COMMENTS), draw(ANNOTATIONS))


ENUM_VALUES = st.builds(EnumValue, NAMES, st.integers(0, 2**31 - 1), COMMENTS, ANNOTATIONS)
DEFINITIONS: st.SearchStrategy[Definition] = st.one_of(
    st.builds(Typedef, NAMES, TYPES, COMMENTS, ANNOTATIONS),
    st.builds(Constant, NAMES, TYPES, VALUES, COMMENTS, ANNOTATIONS),
    st.builds(Enum, NAMES, named(ENUM_VALUES), COMMENTS, ANNOTATIONS),
    structs(),
    st.builds(Service, NAMES, st.none() | st.builds(Reference, PATHS), named(methods(), 2), COMMENTS, ANNOTATIONS),
    scopes(),
)
DOCUMENTS = st.builds(
    Document,
    st.just("a.frugal"),
    st.lists(st.builds(Namespace, PATHS, PATHS, ANNOTATIONS), max_size=2, unique_by=lambda one: one.language).map(
        tuple
    ),
    st.lists(NAMES.map(lambda name: Include(f"sub/{name}.frugal", name)), max_size=2, unique=True).map(tuple),
    named(DEFINITIONS, 3),
)


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS)
def test_what_is_printed_is_read_back_the_same(document: Document) -> None:
    text = document_text(document)
    found = parse(text, "a.frugal")
    assert found == document
    assert repr(document_text(found)) == repr(text)


SEED = """\
namespace py a
include "b.frugal"
/** doc */
const map<string, list<i32>> C = {"a": [1, -2], 'b\\n': [0x1F,]} (x = "y")
typedef list<i64 (a)> L
enum E { A = 1, B }
struct S { 1: required L l = [1], 2: optional E e = E.A; 3: map<i32, S> m, 4: b.B b = {x: 1} }
union U { 1: S s, 2: double d = 1.5e3 }
exception X { 1: string why }
service V extends b.V { oneway void f(1: i32 a), S g(1: S s = {}) throws (1: X x) (a) }
scope P prefix a.{b}.c { One: S (key = "e"), Two: i64 (t) () }
"""
OTHER = "struct B { 1: i32 x } service V { void p() }"
PIECES = [
    *[
        "struct",
        "enum",
        "service",
        "scope",
        "const",
        "typedef",
        "include",
        "namespace",
        "union",
        "prefix",
        "throws",
        "oneway",
        "required",
        "void",
        "i32",
    ],
    *[
        "list<",
        "map<",
        "set<",
        "C",
        "S",
        "L",
        "E.A",
        "b.B",
        "1:",
        "=",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "<",
        ">",
        ",",
        ";",
        ":",
        "/*",
        "*/",
        "/**",
        "//",
        "#",
        "-",
        ".",
        "0x",
        "&",
        "*",
        "{a}",
        "1e400",
    ],
    *('"', "'", "\\", "\n", " ", "\x00", "é", "9" * 30, "\ud800", "\ufeff"),
]
EDITS = st.lists(
    st.tuples(
        st.integers(0, len(SEED)), st.integers(0, 12), st.lists(st.sampled_from(PIECES), max_size=4).map("".join)
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=400, deadline=None)
@given(EDITS)
def test_a_damaged_file_is_read_or_its_mistakes_are_told(edits: list[tuple[int, int, str]]) -> None:
    text = SEED
    for at, cut, put in edits:
        text = text[:at] + put + text[at + cut :]
    check(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=60))
def test_any_row_of_pieces_is_read_or_its_mistakes_are_told(pieces: list[str]) -> None:
    check(" ".join(pieces))
    check("".join(pieces))


def test_the_seed_is_sound() -> None:
    link("a.frugal", texts({"a.frugal": SEED, "b.frugal": OTHER}))


def check(text: str) -> None:
    """Link a text; whatever it is, it ends with a program or with places in the file."""
    mistakes = _mistakes(text)
    lines = text.split("\n")
    assert len(mistakes) <= MISTAKES_MAX
    for mistake in mistakes:
        place = mistake.position
        assert place.file == "a.frugal"
        assert 1 <= place.column <= len(lines[place.line - 1]) + 1
        str(mistake).encode()  # it can be shown


def _mistakes(text: str) -> tuple[Mistake, ...]:
    try:
        program = link("a.frugal", texts({"a.frugal": text, "b.frugal": OTHER}))
    except IdlError as error:
        return error.mistakes or (Mistake(NOWHERE, "none"),)
    assert parse(document_text(program.document), "a.frugal") == program.document
    return ()
