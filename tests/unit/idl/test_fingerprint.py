"""Fingerprints of types: what changes them, and what does not."""

from __future__ import annotations

import pytest

from penstock.idl.files import texts
from penstock.idl.fingerprint import fingerprint
from penstock.idl.linker import link
from penstock.idl.model import Reference

ORDER = (
    'struct Order { 1: required i64 id, 2: list<Line> lines, 3: string note = "none" } struct Line { 1: string item }'
)


def of(text: str, name: str = "Order", **files: str) -> str:
    read = texts({"a.frugal": text, **{f"{file}.frugal": each for file, each in files.items()}})
    return fingerprint(link("a.frugal", read), Reference(name))


@pytest.mark.parametrize(
    "same",
    [
        "/** An order. */ " + ORDER,
        "struct Other { 1: i64 x } " + ORDER + " service S { void f() } const i32 N = 1",
        "struct Line { 1: string item } " + ORDER.partition(" struct Line")[0],
        ORDER.replace("string item", 'string item (key, deprecated = "soon")'),
        "typedef i64 Id typedef list<Line> Lines " + ORDER.replace("i64 id", "Id id").replace("list<Line>", "Lines"),
    ],
)
def test_what_stands_beside_a_type_does_not_change_it(same: str) -> None:
    assert of(same) == of(ORDER)


def test_the_file_of_a_type_does_not_change_it() -> None:
    apart = 'include "base.frugal" ' + ORDER.partition(" struct Line")[0].replace("Line", "base.Line")
    assert of(apart, base="struct Line { 1: string item }") == of(ORDER)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("1: required i64", "4: required i64"),
        ("1: required i64", "1: i64"),
        ("1: required i64", "1: required i32"),
        ("i64 id", "i64 number"),
        ("list<Line>", "set<Line>"),
        ('"none"', '"some"'),
        (' = "none"', ""),
        ("string item", "binary item"),
        ("struct Line", "union Line"),
        ("Line", "Row"),
    ],
)
def test_what_a_type_is_made_of_changes_it(was: str, now: str) -> None:
    assert of(ORDER.replace(was, now)) != of(ORDER)


def test_the_value_of_a_named_default_counts() -> None:
    text = "const i32 N = {} enum E {{ A = 1, B = 2 }} struct S {{ 1: i32 n = N, 2: E e = E.{}, 3: list<i32> l = [N] }}"
    assert of(text.format(1, "A"), "S") == of(text.format(1, "A"), "S")
    assert len({of(text.format(*each), "S") for each in ((1, "A"), (2, "A"), (1, "B"))}) == 3
    named = 'include "b.frugal" struct S { 1: i32 n = b.N }'
    assert of(named, "S", b="const i32 N = 1") != of(named, "S", b="const i32 N = 2")


def test_a_type_may_be_made_of_itself() -> None:
    tree = "struct Tree { 1: optional list<Tree> below, 2: optional map<string, Tree> named }"
    assert of(tree, "Tree") == of(tree + " struct Other { }", "Tree")
    assert of(tree, "Tree") != of(tree.replace("map<string", "map<i64"), "Tree")


def test_it_is_what_it_was() -> None:
    """The hash is in stored messages and in `__schemas`: it never changes."""
    assert of(ORDER) == "ad16dd89b6a6889e445a90253cb293573b0fc3d7700074a95d61402cd4fa1d0a"
