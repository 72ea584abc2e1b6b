"""Small handmade SVG drawings: shapes and text in one coordinate system, as one string.

Rules: Every text is escaped, and its characters that are invalid in XML are replaced. A drawing has no external
references. Colours are classes (`s0` … `s9` for series, `axis`, `grid`, `muted`), so that the page's style sheet sets
the colours of light and dark mode. A series differs from others by its dashes and its mark, too, never by its colour
alone. A drawing has a title and a description for screen readers. Series 10 has the colour of series 0, with another
mark and other dashes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import count

COLOURS = 10
_DASHES = ("", "7 4", "2 3", "10 3 2 3", "4 4", "12 5", "1 4", "6 2 1 2", "9 2 2 2 2 2", "3 2 10 2")
_MARKS = 4
_NOT_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
_numbers = count(1)

Point = tuple[float, float]


def text_of(value: object) -> str:
    """Escape `value` for XML and HTML, also for attributes."""
    return escape(_NOT_XML.sub("\ufffd", str(value)), quote=True)


class Drawing:
    """A drawing of `width` × `height` units; `render` returns it as SVG."""

    def __init__(self, width: float, height: float) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def line(self, start: Point, end: Point, style: str) -> None:
        """Draw a straight line in the class `style`."""
        (x1, y1), (x2, y2) = start, end
        self._parts.append(f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def curve(self, points: Sequence[Point], series: int) -> None:
        """Draw a line through points, in the colour and the dashes of its series."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashes = _DASHES[_turn(series) % len(_DASHES)]
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        self._parts.append(f'<polyline class="curve s{series % COLOURS}" points="{places}"{dashed}/>')

    def mark(self, x: float, y: float, series: int, *, told: str = "", filled: bool = True) -> None:
        """Draw a circle, square, diamond or triangle, by series; `told` is its tooltip."""
        shape = _mark(x, y, _turn(series) % _MARKS)
        title = f"<title>{text_of(told)}</title>" if told else ""
        style = f"{'mark' if filled else 'ring'} s{series % COLOURS}"
        self._parts.append(f'<path class="{style}" d="{shape}">{title}</path>')

    def text(self, x: float, y: float, value: object, *, anchor: str = "start", style: str = "label") -> None:
        """Draw one line of text; `anchor` is start, middle or end."""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{style}" {place}>{text_of(value)}</text>')

    def render(self, title: str, description: str) -> str:
        """Return the whole `<svg>` element."""
        number = next(_numbers)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {self.height:g}" role="img" '
            f'aria-labelledby="t{number} d{number}">'
            f'<title id="t{number}">{text_of(title)}</title><desc id="d{number}">{text_of(description)}</desc>'
        )
        return head + "".join(self._parts) + "</svg>"


def _turn(series: int) -> int:
    """Return the number that selects dashes and mark: shifted by one whenever the colours repeat."""
    return series % COLOURS + series // COLOURS


def _mark(x: float, y: float, shape: int) -> str:
    size = 4.0
    if shape == 0:
        return f"M{x - size:.1f},{y:.1f}a{size},{size} 0 1,0 {2 * size},0a{size},{size} 0 1,0 {-2 * size},0z"
    corners = {
        1: ((-1, -1), (1, -1), (1, 1), (-1, 1)),
        2: ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        3: ((0, -1.2), (1.2, 1), (-1.2, 1)),
    }[shape]
    return "M" + "L".join(f"{x + dx * size:.1f},{y + dy * size:.1f}" for dx, dy in corners) + "z"
