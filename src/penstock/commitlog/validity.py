"""What of a log the views of it show is still there."""

from __future__ import annotations

_ALL = 2**63


class Validity:
    """Up to which offset what views show is still there. They share it with the log, which lowers it before it is cut:
    whoever then finds a file changed knows that it is no damage. Views of before a cut feel those that come later, too.
    """

    __slots__ = ("of_later_views", "own_end")

    def __init__(self) -> None:
        self.own_end = _ALL
        self.of_later_views: Validity | None = None

    def cut(self, end_offset: int) -> None:
        """The log is about to be cut there."""
        self.own_end = end_offset

    def later(self) -> Validity:
        """It was cut: what holds for the views of what is left."""
        self.of_later_views = Validity()
        return self.of_later_views

    @property
    def end_offset(self) -> int:
        """What a view shows before it is still there."""
        end_offset, one = self.own_end, self.of_later_views
        while one is not None:
            end_offset, one = min(end_offset, one.own_end), one.of_later_views
        return end_offset

    @property
    def is_whole(self) -> bool:
        """Whether the log was not cut: the files are what the views take them for."""
        return self.own_end == _ALL
