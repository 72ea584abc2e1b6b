"""A page has what the contract has, links that lead somewhere, and no markup of the contract's own."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from penstock.idl.model import (
    Annotation,
    Constant,
    Document,
    Enum,
    EnumValue,
    Field,
    Literal,
    Operation,
    Program,
    Scalar,
    ScalarKind,
    Scope,
    Struct,
    StructKind,
)
from penstock.idl.page import CONSTANT_CHARS_MAX, PageFormat, page, subject_of
from penstock.idl.printer import quoted
from tests.contracts import program
from tests.protobuf_contracts import protobuf_program

SHOP = """
namespace py shop.orders
include "money.frugal"

/** How far it is. */
enum State { OPEN = 1, /** On its way. */ SENT = 2, OLD = 3 (deprecated = "use SENT") }
typedef map<string, list<money.Amount>> Totals
const i32 TRIES = 3

/** One order. */
struct Order {
  1: required string id (key)
  2: State state = State.OPEN
  3: optional Totals totals
}
exception Refused { 1: string reason }
union Paid { 1: money.Amount cash; 2: string card }

service Base { void ping() }
/** Takes orders. */
service Orders extends Base {
  /** Place an order. */
  Order place(1: Order order, 2: i32 tries = TRIES) throws (1: Refused refused) (idempotent)
  oneway void note(1: string text)
  void stop() (deprecated)
}
scope Orders prefix shop.{region} {
  /** It was placed. */
  Placed: Order (stream = "orders")
}
scope Plain { Counted: i64 }
"""
MONEY = "struct Amount { 1: i64 cents; 2: string currency }"


class Read(HTMLParser):
    """Elements, anchors, links and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.cells = 0
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add((tag, name))
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self.cells += 1
            self.text += " "

    def handle_data(self, data: str) -> None:
        self.text += data


OURS = {
    *[
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "p",
        "ul",
        "li",
        "a",
        "code",
        "table",
        "tr",
        "th",
        "td",
    ]
}
ATTRIBUTES = {("html", "lang"), ("a", "href"), *((each, "id") for each in ("h1", "h2", "h3"))}
ATTRIBUTES |= {("meta", each) for each in ("charset", "name", "content", "http-equiv")}
OF_MARKDOWN = {*["h1", "h2", "h3", "p", "ul", "li", "a", "code", "table", "thead", "tbody", "tr", "th", "td"]}


def read(made: Program, form: PageFormat = PageFormat.HTML) -> Read:
    text = page(made, form)
    return Read(text if form is PageFormat.HTML else MarkdownIt("commonmark").enable("table").render(text))


def words(made: Read) -> str:
    return " ".join(made.text.split())


@pytest.fixture(scope="module", params=[*PageFormat])
def shop(request: pytest.FixtureRequest) -> Read:
    return read(program(SHOP, money=MONEY), request.param)


@pytest.mark.parametrize(
    "shown",
    [
        "py shop.orders",
        "Enum State How far it is.",
        "2 SENT On its way.",
        "3 OLD Deprecated: use SENT",
        "Type: map<string, list<money.Amount>>",
        "Constant TRIES i32 = 3",
        "Struct Order One order.",
        "1 id string required key",
        "2 state State State.OPEN",
        "3 totals Totals optional",
        "Exactly one field is set.",
        "Service Orders Takes orders. Extends Base",
        "Orders.place Place an order. Annotations: idempotent Returns Order",
        "2 tries i32 TRIES",
        "1 refused Refused",
        "Orders.note One way: no answer comes.",
        "Orders.stop Deprecated. Returns nothing; the caller waits until it is done.",
        'Placed frugal.shop.{region}.Orders.Placed frugal.shop.*.Orders.Placed Order It was placed. stream = "orders"',
        "Counted frugal.Plain.Counted i64",
        "File money.frugal",
        "1 cents i64",
    ],
)
def test_a_page_shows(shop: Read, shown: str) -> None:
    assert shown in words(shop)


def test_links_lead_to_anchors_and_no_two_anchors_are_the_same(shop: Read) -> None:
    assert len(shop.ids) == len({*shop.ids})
    assert {each.removeprefix("#") for each in shop.links} <= {*shop.ids}
    assert {"Order", "money.Amount", "scope:Orders", "Orders", "Orders-place"} <= {*shop.ids}


def test_a_page_loads_nothing_and_has_no_script(shop: Read) -> None:
    assert shop.tags <= OURS | OF_MARKDOWN
    assert all(each.startswith("#") for each in shop.links)


def test_a_page_forbids_scripts_and_loading() -> None:
    assert "content=\"default-src 'none'; style-src 'unsafe-inline'\"" in page(program(""))


def test_a_page_is_the_same_each_time() -> None:
    assert page(program(SHOP, money=MONEY)) == page(program(SHOP, money=MONEY))


def test_the_title_is_the_file_unless_one_is_given() -> None:
    made = program("struct S { }", file="contracts/orders.frugal")
    assert "<title>orders.frugal</title>" in page(made)
    assert "<title>A &lt; B</title>" in page(made, title="A < B")


@pytest.mark.parametrize("prefix", ["", "a.{b}.c"])
def test_subjects_are_those_of_frugal(prefix: str) -> None:
    (scope,) = program(
        f"struct S {{}} scope Events {f'prefix {prefix}' if prefix else ''} {{ Made: S }}"
    ).document.scopes
    expected = f"frugal.{prefix}.Events.Made" if prefix else "frugal.Events.Made"
    assert subject_of(scope, scope.operations[0]) == expected


@pytest.mark.parametrize("form", [*PageFormat])
def test_equal_names_get_anchors_of_their_own(form: PageFormat) -> None:
    """A scope named as a service, and a file named as a service, with a type named as its method."""
    text = 'include "Orders.frugal"\nservice Orders { void place() }\nscope Orders { A: Orders.place }'
    made = read(program(text, Orders="struct place { 1: i32 top }"), form)
    assert len(made.ids) == len({*made.ids})
    assert {each.removeprefix("#") for each in made.links} <= {*made.ids}


def test_a_long_constant_is_cut() -> None:
    made = words(read(program(f'const string C = "{"x" * 10 * CONSTANT_CHARS_MAX}"')))
    assert "xxx…" in made
    assert "x" * CONSTANT_CHARS_MAX not in made


# Hostile contracts

HOSTILE = [
    "<script>alert(1)</script>",
    "</code></td></table><script>",
    '" onmouseover="alert(1)',
    "--></style><img src=x onerror=alert(1)>",
    "[x](javascript:alert(1)) ![y](http://a.b/c.png) <http://a.b>",
    "`` ` ``` ``<b>``",
    "a | b \\| c \\\\| d",
    "# heading",
    "1. one",
    "- [ ] item",
    "=====",
    "&lt;b&gt; &#60;b&#62;",
    "~~~\n<b>\n~~~",
    "`<b>`",
    "$x$ ***b*** __c__",
    "\\<b>",
    "line\u202egnirts\u2066",
    "nul \x00 bell \x07 escape \x1b[31m",
    "|---|---|",
    "***",
    "    <b>indented</b>",
]


def everywhere(text: str) -> Program:
    """A program that has the text wherever a contract may have any."""
    annotations = (Annotation("note", text), Annotation("deprecated", text))
    number = Scalar(ScalarKind.I32)
    field = Field(1, "a", Scalar(ScalarKind.STRING), default=Literal(text), comment=text, annotations=annotations)
    document = Document(
        "main.frugal",
        definitions=(
            Struct("S", StructKind.STRUCT, (field,), text, annotations),
            Enum("E", (EnumValue("A", 0, text, annotations),), text, annotations),
            Constant("C", Scalar(ScalarKind.STRING), Literal(text), text, annotations),
            Scope("T", "p", (), (Operation("O", number, text, annotations),), text, annotations),
        ),
    )
    return Program(document, {})


def check(text: str, form: PageFormat) -> None:
    plain, made = read(everywhere("x"), form), read(everywhere(text), form)
    assert made.tags <= plain.tags
    assert made.attributes <= plain.attributes
    assert (made.ids, made.links, made.cells) == (plain.ids, plain.links, plain.cells)


@pytest.mark.parametrize("form", [*PageFormat])
@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_contract_is_never_markup(text: str, form: PageFormat) -> None:
    check(text, form)


@pytest.mark.parametrize("form", [*PageFormat])
@given(text=st.text(st.one_of(st.characters(), st.sampled_from("<>&\"'`|*_[]()!#~$\\-+=1. \n")), max_size=30))
def test_no_text_is_markup(form: PageFormat, text: str) -> None:
    check(text, form)


@pytest.mark.parametrize("form", [*PageFormat])
@pytest.mark.parametrize("text", [each for each in HOSTILE if "\n" not in each and each.isprintable()])
def test_text_is_shown_as_it_is(text: str, form: PageFormat) -> None:
    (definition,) = program("struct S {}").document.definitions
    made = read(Program(Document("a", definitions=(replace(definition, comment=text),)), {}), form)
    assert " ".join(text.split()) in words(made)


@pytest.mark.parametrize("form", [*PageFormat])
@pytest.mark.parametrize("text", [each for each in HOSTILE if each.isprintable()])
def test_a_default_is_shown_as_it_is(text: str, form: PageFormat) -> None:
    """Also in a table, where a bar in code would begin another cell."""
    field = Field(1, "a", Scalar(ScalarKind.STRING), default=Literal(text))
    struct = Struct("S", StructKind.STRUCT, (field,))
    made = read(Program(Document("a", definitions=(struct,)), {}), form)
    assert " ".join(quoted(text).split()) in words(made)


@pytest.mark.parametrize("form", [*PageFormat])
@pytest.mark.parametrize("char", ["\x00", "\x1b", "\x9b", "\u202e", "\u2067", "\u200f"])
def test_characters_that_control_the_page_are_replaced(char: str, form: PageFormat) -> None:
    assert char not in page(everywhere(f"a{char}b"), form)


def test_only_the_elements_of_a_page_are_used() -> None:
    made = read(program(SHOP, money=MONEY))
    assert made.tags == OURS
    assert made.attributes == ATTRIBUTES


@pytest.mark.parametrize("form", [*PageFormat])
def test_a_method_of_protobuf_says_which_side_streams(form: PageFormat) -> None:
    pytest.importorskip("google.protobuf")
    text = "message M { int32 a = 1 } service S { Get M M; Follow M stream M }"
    said = words(read(protobuf_program(text), form))
    assert said.count("streaming") == said.count("; streaming: server") == 1
