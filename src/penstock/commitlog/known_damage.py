"""What is known to be damaged in one log, and what threads that read have found since.

Rules: `note` and `report` may be called in any thread, and tell `noticed` that there is something to take in; the log's
own task does so, so that what is known changes for it at one place only. A damage is known once, by its file and
position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.commitlog.segment import Damage

Locate = Callable[[str, int, str], Damage | None]
"""File, position and reason of a report → the offsets that are lost with it; None if the log has no such file."""


class KnownDamage:
    """The damage of one log. `known` is what its own task has taken in."""

    __slots__ = ("_noted", "_noticed", "_reported", "has_news", "known")

    def __init__(self, known: Iterable[Damage], noticed: Callable[[], None] | None = None) -> None:
        self.known = tuple(known)
        self._noticed = noticed
        self._noted: dict[tuple[str, int], Damage] = {}
        self._reported: dict[tuple[str, int], str] = {}
        self.has_news = False  # there is something to take in

    def note(self, damage: Damage) -> None:
        """Somebody found this."""
        self._noted[damage.file, damage.position] = damage
        self._tell()

    def report(self, path: str, position: int, reason: str) -> None:
        """Somebody could not read the file from this byte on."""
        self._reported[path, position] = reason
        self._tell()

    def _tell(self) -> None:
        self.has_news = True
        self.ask_for_visit()

    def ask_for_visit(self) -> None:
        """Have the log's own task look at it."""
        if self._noticed is not None:
            self._noticed()

    def of(self, path: str) -> tuple[Damage, ...]:
        """What is known of one file."""
        return tuple(one for one in self.known if one.file == path)

    def take_in(self, locate: Locate) -> None:
        """Make known what was noted and reported."""
        self.has_news = False  # first: a thread may find more meanwhile
        while self._reported:
            (path, position), reason = self._reported.popitem()
            if (located := locate(path, position, reason)) is not None:
                self._noted[located.file, located.position] = located
        places = {(one.file, one.position) for one in self.known}
        while self._noted:
            place, damage = self._noted.popitem()
            if place not in places:
                self.known = (*self.known, damage)
