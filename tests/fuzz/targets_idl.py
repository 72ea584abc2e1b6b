"""Contracts that someone else wrote: a file of Frugal or Thrift, and one that it includes."""

from __future__ import annotations

from random import Random

from penstock.idl.files import texts
from penstock.idl.linker import link
from penstock.idl.mistakes import IdlError
from penstock.idl.parser import parse
from penstock.idl.printer import document_text
from tests.fuzz.parts import joined, parted
from tests.fuzz.target import Cover, Modules, Target

_NO_DIGITS = str.maketrans("", "", "0123456789")
_DECLARATIONS = (
    "namespace py a.b (vendor)", 'include "b.frugal"', 'cpp_include "x"', 'include "../b.thrift"',
    "/** doc */ const i32 C = 0x1F", "const i8 D = C",
    'const map<string, list<b.E>> M = {"a": [A, 1], C: []} (x = "y")',
    "typedef list<i64 (a)> (b) L", "typedef L L2", "enum E { A = 1, B (x), C; }", "enum F { A = 5, B = 1, C }",
    'struct S { 1: required L l = [1], 2: optional E e = E.A; 3: map<i32, S> m & 4: S s = {l: []} (a = "b") }',
    "union U { 1: S s, 2: double d = 1.5e3 } (x)", "exception X { 1: string why = 'a\\n\\u20ac' }", "struct P {}",
    "service V extends b.V { oneway void f(1: i32 a = 1), S g(1: S s) throws (1: X x) (a); async void h() }",
    "scope T prefix a.{b}.c { One: S (key = \"l\"), Two: i64 (t) () /** x */ Three: b.E }", "scope T2 { A: uuid }",
    "struct R { 1: required R r }", "typedef Q Q", "const i32 K = K", "service W extends W {}",
    'const uuid I = "00112233-4455-6677-8899-aabbccddeeff"', "const U UC = {s: 1}", "const bool Y = true",
)  # fmt: skip
_INCLUDED = (
    "enum E { A = 3 } service V { void p() } const i64 N = 9", "struct S { 1: i32 a }", 'include "a.frugal"', "x",
)  # fmt: skip
_PIECES = tuple(
    b"struct |enum |service |scope |const |typedef |include |union |exception |prefix |throws |oneway |required |list<|"
    b"map<|set<|i32|string|uuid|b.E|E.A|1:|2:|=|{|}|(|)|[|]|<|>|,|;|:|\"|'|\\|/*|*/|/**|//|#|\n|-|.|0x|1e400|{a}|&|*|"
    b"99999999999999999999|\xef\xbb\xbf|\xc3\xa9|\xff".split(b"|")
)


def idl(modules: Modules, data: bytes) -> object:
    """A file and one that it includes: a program whose text is read back the same, or places of mistakes."""
    main, included, *_ = [*(part.decode("utf-8", "replace") for part in parted(data)), "", ""]
    try:
        program = link("a.frugal", texts({"a.frugal": main, "b.frugal": included}))
    except IdlError as error:
        files = {"a.frugal": main.split("\n"), "b.frugal": included.split("\n")}
        for mistake in error.mistakes:
            place = mistake.position
            assert 1 <= place.column <= len(files[place.file][place.line - 1]) + 1, mistake
        return " ".join(each.text[:30].translate(_NO_DIGITS) for each in error.mistakes[:2])
    text = document_text(program.document)
    assert parse(text, "a.frugal") == program.document
    return " ".join(sorted({type(each).__name__ for each in program.document.definitions}))


def made_idl(chance: Random) -> bytes:
    """Some declarations, sound or not."""
    count = 1 + int(chance.random() * 5)
    lines = [chance.choice(_DECLARATIONS) for _ in range(count)]
    if chance.random() < 0.3:
        depth = int(chance.random() * 200)
        lines.append(f"typedef {'list<' * depth}i32{'>' * depth} Deep")
    return joined(("\n".join(lines).encode(), chance.choice(_INCLUDED).encode()))


TARGETS = [
    Target(
        name="idl",
        run=idl,
        make=made_idl,
        covers=(
            Cover("penstock.idl.lexer"),
            Cover("penstock.idl.parser"),
            Cover("penstock.idl.linker", ("_Linking",)),
            Cover("penstock.idl.checks"),
            Cover("penstock.idl.constants"),
        ),
        pieces=_PIECES,
    ),
]
