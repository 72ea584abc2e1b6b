"""HTML of untrusted names and payloads."""

from __future__ import annotations

import pytest

from penstock.base import limits
from penstock.base.notebook import escaped, html_pairs, html_table, preview


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (7, "7"),
        ("<script>alert('x')</script>&", "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;"),
        ("a\x1b[31m\n\u202e", "a\\x1b[31m\\n\\u202e"),
    ],
)
def test_texts_are_escaped(value: object, shown: str) -> None:
    assert escaped(value) == shown
    assert f"<td>{shown}</td>" in html_pairs({"<": value})
    assert f"<td>{shown}</td>" in html_table(("<",), [(value,)], count=1)
    assert "<<" not in html_pairs({"<": value}) + html_table(("<",), [], count=0)


def test_a_long_table_is_cut() -> None:
    count = limits.NOTEBOOK_ROWS_MAX + 1_234
    html = html_table(("n",), ((number,) for number in range(count)), count=count)
    assert html.count("<tr>") == 1 + limits.NOTEBOOK_ROWS_MAX
    assert html.endswith("<p>… and 1,234 more</p>")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (None, None),
        (b"", ""),
        ("grün".encode(), "grün"),
        (b"\xff\x00", "b'\\xff\\x00'"),
        (b"x" * 65, "x" * 64 + "…"),
        (b"x" * 63 + "ü".encode(), "x" * 63 + "…"),  # the cut is within a character
        (b"x" * 63 + b"\xc3", f"{b'x' * 63 + bytes([0xC3])!r}"),
    ],
)
def test_the_beginning_of_a_payload(data: bytes | None, shown: str | None) -> None:
    assert preview(data) == shown
