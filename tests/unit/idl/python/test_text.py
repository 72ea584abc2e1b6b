"""Literals and docstrings: what they stand for is what was given."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.idl.model import Annotation
from penstock.idl.python import text
from tests.unit.idl.python.models import TEXTS, WORST_TEXTS


@given(TEXTS | st.text())
def test_quoted(given_text: str) -> None:
    literal = text.quoted(given_text)
    assert ast.literal_eval(literal) == given_text
    assert literal.isprintable()


@given(st.binary() | TEXTS.map(lambda each: each.encode("utf-8", "surrogatepass")))
def test_quoted_bytes(data: bytes) -> None:
    literal = text.quoted_bytes(data)
    assert ast.literal_eval(literal) == data
    assert literal.isascii()
    assert literal.isprintable()


@given(TEXTS | st.text(), st.sampled_from(["", "    "]))
def test_docstring(given_text: str, indent: str) -> None:
    lines = text.docstring(given_text, indent)
    assert all(line.isprintable() and "\n" not in line for line in lines)
    source = "\n".join(lines) if not indent else "\n".join(["class A:", *lines, "    x = 1"])
    tree = ast.parse(source)
    if not lines:
        return
    body: Any = tree.body[0].body if indent else tree.body  # type: ignore[attr-defined]
    assert [type(each) for each in body] == [ast.Expr, *([ast.Assign] if indent else [])]
    expected = "".join(map(text._seen, "".join(given_text.splitlines())))
    assert "".join(body[0].value.value.split()) == "".join(expected.split())


@pytest.mark.parametrize(
    ("comment", "lines"),
    [
        ("", []),
        (" \n ", []),
        ("one", ['"""one"""']),
        ("one\n\n  two ", ['"""one', "", "  two", '"""']),
        ('says "a"', ['"""says "a\\""""']),
        ('"""', ['"""\\"\\"\\""""']),
        ("a\\", ['"""a\\\\"""']),
        ("\u202ea\0", ['"""\\\\u202ea\\\\x00"""']),
        ("a\u3000b\tc", ['"""a b c"""']),
    ],
)
def test_docstring_of(comment: str, lines: list[str]) -> None:
    assert text.docstring(comment) == lines


def test_described() -> None:
    marks = (Annotation("deprecated", "old"), Annotation("deprecated", "use b"))
    assert text.described("A.", marks, "Raises E.") == "A.\n\nRaises E.\n\nDeprecated: use b"
    assert text.described("", (Annotation("deprecated"),)) == "Deprecated."
    assert text.described("", ()) == ""


@pytest.mark.parametrize("said", WORST_TEXTS)
def test_annotations_are_only_text(said: str) -> None:
    items = text.annotation_items((Annotation(said, "a"), Annotation("b", "old"), Annotation("b", said)))
    literal = f"{{{', '.join(items)}}}"
    assert ast.literal_eval(literal) == {said: "a", "b": said}
    assert literal.isprintable()


def test_call() -> None:
    assert text.call("f(", ["a", "b"], ")") == ["f(a, b)"]
    assert text.call("f(", [], ")") == ["f()"]
    assert text.call("f(", ["a" * 70, "b" * 50], ")", " ") == [" f(", f"     {'a' * 70},", f"     {'b' * 50},", " )"]
