"""HTML tables for notebooks (`_repr_html_`).

Rules: names, subjects and payloads are untrusted: every text is escaped, control characters and bidirectional marks
included. Nothing here asks a broker.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from penstock.base import limits


def html_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, count: int) -> str:
    """Return a table of the first NOTEBOOK_ROWS_MAX of `count` rows."""
    shown = islice(rows, limits.NOTEBOOK_ROWS_MAX)
    body = "".join(f"<tr>{''.join(f'<td>{escaped(one)}</td>' for one in row)}</tr>" for row in shown)
    more = count - limits.NOTEBOOK_ROWS_MAX
    end = f"<p>… and {more:,} more</p>" if more > 0 else ""
    titles = "".join(f"<th>{escaped(one)}</th>" for one in head)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>{end}"


def html_pairs(pairs: Mapping[str, object]) -> str:
    """Return a table of two columns, name and value."""
    rows = "".join(f"<tr><th>{escaped(name)}</th><td>{escaped(one)}</td></tr>" for name, one in pairs.items())
    return f"<table><tbody>{rows}</tbody></table>"


def escaped(value: object) -> str:
    """Return text for HTML; None is empty."""
    text = "" if value is None else str(value)
    if not text.isprintable():
        text = "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return html.escape(text)


def preview(data: bytes | None) -> str | None:
    """Return the beginning of a payload: as text if it is UTF-8, else as Python shows bytes; None: no payload."""
    if data is None:
        return None
    beginning = data[: limits.PAYLOAD_PREVIEW_BYTES]
    more = "…" if len(beginning) < len(data) else ""
    try:
        return beginning.decode() + more
    except UnicodeDecodeError as error:
        if more and error.start > len(beginning) - 4 and error.reason == "unexpected end of data":
            return beginning[: error.start].decode() + more
        return f"{beginning!r}{more}"
