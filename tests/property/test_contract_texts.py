"""Any two contracts that the linker takes can be compared, and have pages whose links lead somewhere.

A rich contract is drawn with words exchanged, and lines left out, repeated or moved.
"""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from penstock.idl.compatibility import RULES, breaking, compare, compare_all
from penstock.idl.mistakes import IdlError
from penstock.idl.model import NOWHERE, Program
from penstock.idl.page import PageFormat, page
from tests.contracts import program

LINES = """namespace py shop
include "base.frugal"
typedef i32 Number
typedef list<Thing> Things
typedef base.Amount Amount
const i32 ONE = 1
const Number TWO = ONE
const list<i32> MANY = [ONE, 2, 3]
enum Color { RED = 1, BLUE = 2 }
struct Thing { 1: Number a = 1; 2: optional Color color = Color.RED (key) }
struct Other { 1: required string a; 3: Amount amount; 4: map<string, Things> all }
union Either { 1: Thing thing; 2: Other other }
exception Wrong { 1: string why }
exception Worse { 1: string why; 2: Either either }
service Base { void ping(); Thing get(1: i32 a) throws (1: Wrong e) }
service Shop extends Base { oneway void note(1: Other other); void put(1: Thing thing) throws (1: Worse e) }
service Far extends base.Remote { list<Other> all() (idempotent) }
scope Events prefix shop.{region}.{kind} { Made: Thing (stream = "made"), Sold: Other }
scope Plain { Counted: Number }""".splitlines()
BASE = "struct Amount { 1: i64 cents }\nservice Remote { void far() }\n"
WORDS = [
    *{*re.findall(r"[A-Za-z_]+", "\n".join(LINES))},
    *("binary", "bool", "double", "set<i32>", "1", "2", "3", "7", "base.Amount", "base.Remote", "i64"),
]


def changed(draw: st.DrawFn, lines: list[str]) -> list[str]:
    """The lines with one change."""
    lines = list(lines)
    at = draw(st.integers(0, len(lines) - 1))
    kind = draw(st.sampled_from(["word", "word", "word", "rename", "out", "move"]))
    if kind == "out":
        lines.pop(at)
    elif kind == "move":
        lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
    else:
        found = draw(st.sampled_from([*re.finditer(r"[A-Za-z_.]+|\d+", lines[at])]))
        word = draw(st.sampled_from(WORDS))
        if kind == "word":
            lines[at] = lines[at][: found.start()] + word + lines[at][found.end() :]
        else:
            lines = [re.sub(rf"\b{re.escape(found[0])}\b", word, line) for line in lines]
    return lines


@st.composite
def contracts(draw: st.DrawFn) -> Program:
    """A contract near the one above: changes that the linker refuses are left out."""
    base = BASE.replace("i64", draw(st.sampled_from(["i64", "i64", "i32"])))
    lines = LINES
    made = program("\n".join(lines), base=base)
    for _ in range(draw(st.integers(0, 8))):
        others = changed(draw, lines)
        try:
            made = program("\n".join(others), base=base)
        except IdlError:
            continue
        lines = others
    return made


@given(contracts(), contracts())
def test_two_contracts_can_be_compared(old: Program, new: Program) -> None:
    changes = compare(old, new)
    for change in changes:
        assert change.rule is RULES[change.rule.id]
        assert change.subject
        assert change.text
        assert (change.old, change.new) != (NOWHERE, NOWHERE)
    assert len({*changes}) == len(changes)
    assert compare(old, old) == []
    assert compare_all([old, old]) == []
    assert {*breaking(changes)} <= {*changes}


@given(contracts())
def test_a_contract_has_pages_whose_links_lead_somewhere(contract: Program) -> None:
    for form, anchor, link in (
        (PageFormat.HTML, r'id="([^"]*)"', r'href="#([^"]*)"'),
        (PageFormat.MARKDOWN, r'<a id="([^"]*)"', r"\]\(#([^)]*)\)"),
    ):
        text = page(contract, form)
        anchors = re.findall(anchor, text)
        assert len(anchors) == len({*anchors})
        assert {*re.findall(link, text)} <= {*anchors}
