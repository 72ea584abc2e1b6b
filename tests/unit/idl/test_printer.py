"""A document as text: one form for each thing, and nothing that the language lacks."""

from __future__ import annotations

import math

import pytest

from penstock.idl.model import Constant, Document, Field, Literal, Scalar, ScalarKind, Struct, StructKind, Typedef
from penstock.idl.parser import parse
from penstock.idl.printer import document_text, quoted, type_text, value_text

WRITTEN = """
# a comment
include 'base.frugal' (vendor)
namespace py shop; namespace * any

/** Why. */ const map<string, list<double>> C = {"a": [1, 2.5, 1e30, -1e-7]; b : []} (x = 'y"')
typedef list<i32 (a)> (b) L,
enum E { A /** is b */ B = 0x10 (deprecated="use A") }
/**@
 * Two lines,
 *   the second indented.
 */
struct S {
  1: required i64 (js = "x") id = -1
  /** who */ 2: optional base.C c (key); 3: bool d = true
}
union U { 1: i32 a }
exception X { 1: string why }
service V extends base.V {
  void ping(),
  /** gives */
  list<E> get(/** which */ 1: S s, 2: optional bool b = false) throws (1: X x) (idempotent)
  async void forget(1: i64 id)
}
service W { }
scope P prefix a.{b} { One: S (durable = "s") Two: i64 (t) () Three: list<i32> (t) (o) } (z)
scope Q {}
"""
PRINTED = """\
namespace py shop
namespace * any
include "base.frugal" (vendor)

/**@ Why. */
const map<string, list<double>> C = {"a": [1, 2.5, 1.0e+30, -1.0e-07], b: []} (x = "y\\"")

typedef list<i32 (a)> (b) L

enum E {
  A = 0,
  /**@ is b */
  B = 16 (deprecated = "use A"),
}

/**@
 * Two lines,
 *   the second indented.
 */
struct S {
  1: required i64 (js = "x") id = -1,
  /**@ who */
  2: optional base.C c (key),
  3: bool d = true,
}

union U {
  1: i32 a,
}

exception X {
  1: string why,
}

service V extends base.V {
  void ping(),
  /**@ gives */
  list<E> get(/**@ which */ 1: S s, 2: optional bool b = false) throws (1: X x) (idempotent),
  oneway void forget(1: i64 id),
}

service W {
}

scope P prefix a.{b} {
  One: S (durable = "s"),
  Two: i64 (t) (),
  Three: list<i32> (t) (o),
} (z)

scope Q {
}
"""


def test_the_canonical_form() -> None:
    document = parse(WRITTEN, "a.frugal")
    assert document_text(document) == PRINTED
    assert parse(PRINTED, "a.frugal") == document


def test_an_empty_document() -> None:
    assert document_text(Document("a.frugal")) == ""


def test_text_is_quoted_on_one_line() -> None:
    assert quoted('a\n\r\t"\\é\x0b') == '"a\\n\\r\\t\\"\\\\é\x0b"'
    assert type_text(Scalar(ScalarKind.I8)) == "i8"
    assert value_text(Literal(-0.0)) == "-0.0"


def test_a_comment_cannot_end_early() -> None:
    document = Document("a", definitions=(Typedef("T", Scalar(ScalarKind.I8), "a */ struct X {} /* b"),))
    text = document_text(document)
    assert text == "/**@ a * / struct X {} /* b */\ntypedef i8 T\n"
    assert [each.name for each in parse(text, "a.frugal").definitions] == ["T"]


@pytest.mark.parametrize(
    ("document", "mistake"),
    [
        (
            Document("a", definitions=(Typedef("T", Scalar(ScalarKind.U64)),)),
            "the type u64 cannot be written in an IDL file: it is one of Protobuf",
        ),
        (
            Document("a", definitions=(Constant("C", Scalar(ScalarKind.DOUBLE), Literal(math.inf)),)),
            "inf cannot be written in an IDL file",
        ),
        (
            Document(
                "a",
                definitions=(
                    Struct("S", StructKind.STRUCT, (Field(1, "a", Scalar(ScalarKind.I64), encoding="sint64"),)),
                ),
            ),
            'the encoding "sint64" of "a" cannot be written in an IDL file',
        ),
    ],
)
def test_what_the_language_lacks(document: Document, mistake: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the whole text is compared
        document_text(document)
    assert str(caught.value) == mistake
