"""Mistakes in IDL files: each with its place, several in one error.

Rules: a front end goes on after a mistake and tells of all that it found, in the order of files and lines. A text says
what is wrong, with which word, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from penstock.base.errors import PenstockError
from penstock.idl.model import Position

MISTAKES_MAX = 50
"""Most mistakes that one error names; then it says that there are more."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake; as text `orders.frugal:12:5: the id 3 is that of "name" already`."""

    position: Position
    text: str

    def __str__(self) -> str:
        return f"{self.position}: {self.text}"


class IdlError(PenstockError, ValueError):
    """An IDL file that cannot be used.

    `mistakes`: in order, MISTAKES_MAX at most; `more`: whether it leaves some out.
    """

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        found = sorted(dict.fromkeys(mistakes), key=_order)
        self.mistakes = tuple(found[:MISTAKES_MAX])
        self.more = len(found) > MISTAKES_MAX
        super().__init__("\n".join([*map(str, self.mistakes), *(["and more"] if self.more else [])]))


class IdlWarning(UserWarning):
    """A part of a contract that is likely not meant as it is written, such as a mistyped annotation."""


class Mistakes:
    """The mistakes that one run has found so far."""

    def __init__(self) -> None:
        self._found: list[Mistake] = []

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Mistake]:
        return iter(self._found)

    def add(self, position: Position, text: str) -> None:
        """Note a mistake and go on."""
        self._found.append(Mistake(position, text))

    def extend(self, mistakes: Iterable[Mistake]) -> None:
        """Note mistakes of another run."""
        self._found += mistakes

    def raise_if_any(self) -> None:
        """Raise IdlError if there is a mistake."""
        if self._found:
            raise IdlError(self._found)


def _order(mistake: Mistake) -> tuple[str, int, int, str]:
    place = mistake.position
    return place.file, place.line, place.column, mistake.text
