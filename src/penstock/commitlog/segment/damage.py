"""Corruption of one log: a corrupt range, and all that are known, including what reader threads report.

Rules: `note` and `report` may be called in any thread and call `noticed`. The log's own task takes the reports in, so
the known set changes for it at one place only. A corrupt range is identified by its file and position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.base.errors import CorruptionError

_SOUND = "sound bytes"


@dataclass(frozen=True, slots=True)
class Damage:
    """A corrupt range of the log. Nothing of it is ever deleted or cut.

    `base_offset` to `end_offset` are the lost offsets (`end_offset` None: unknown end; equal to base_offset: none
    lost). `position` is the first corrupt byte in `file`, or that of its batch. Where nothing more
    precise is expected than sound bytes, `found` says what is wrong.
    """

    file: str
    position: int
    base_offset: int
    end_offset: int | None
    found: str
    expected: str = _SOUND

    @classmethod
    def of(cls, mistake: CorruptionError, position: int, base_offset: int, end_offset: int | None) -> Damage:
        """Return the damage that a failed check shows; `position`: of the batch in which the mistake is."""
        found = str(mistake.found)
        if mistake.position != position:
            found = f"{found} at byte {mistake.position}"
        return cls(mistake.file, position, base_offset, end_offset, found, str(mistake.expected))

    @property
    def reason(self) -> str:
        """Reason without file and position."""
        return self.found if self.expected == _SOUND else f"expected {self.expected}, found {self.found}"

    def holds(self, offset: int) -> bool:
        """True if `offset` is lost."""
        return self.base_offset <= offset and (self.end_offset is None or offset < self.end_offset)


Locate = Callable[[str, int, str], Damage | None]
"""Maps file, position and reason of a report to the corrupt offsets; None if the log has no such file."""


class KnownDamage:
    """Corrupt ranges of one log. `known`: those that its own task has taken in."""

    __slots__ = ("_noted", "_noticed", "_reported", "has_news", "known")

    def __init__(self, known: Iterable[Damage], noticed: Callable[[], None] | None = None) -> None:
        self.known = tuple(known)
        self._noticed = noticed
        self._noted: dict[tuple[str, int], Damage] = {}
        self._reported: dict[tuple[str, int], str] = {}
        self.has_news = False  # there is something to take in

    def note(self, damage: Damage) -> None:
        """Report a corrupt range."""
        self._noted[damage.file, damage.position] = damage
        self._tell()

    def report(self, path: str, position: int, reason: str) -> None:
        """Report that a file cannot be read from this byte on."""
        self._reported[path, position] = reason
        self._tell()

    def _tell(self) -> None:
        self.has_news = True
        self.ask_for_visit()

    def ask_for_visit(self) -> None:
        """Have the log's own task run."""
        if self._noticed is not None:
            self._noticed()

    def of(self, path: str) -> tuple[Damage, ...]:
        """Return the known corrupt ranges of one file."""
        return tuple(one for one in self.known if one.file == path)

    def take_in(self, locate: Locate) -> None:
        """Add the reported ranges to `known`."""
        self.has_news = False  # cleared first: a thread may report more meanwhile
        while self._reported:
            (path, position), reason = self._reported.popitem()
            if (located := locate(path, position, reason)) is not None:
                self._noted[located.file, located.position] = located
        places = {(one.file, one.position) for one in self.known}
        while self._noted:
            place, damage = self._noted.popitem()
            if place not in places:
                self.known = (*self.known, damage)
