"""What of a log the views of it show is still there."""

from __future__ import annotations

NEVER_OFFSET = 2**63  # behind all that there may be


class Validity:
    """Up to which offset what views show is still there. They share it with the log, which lowers it before it is cut:
    whoever then finds a file changed knows that it is no damage. Views of before a cut feel those that come later, too.
    """

    __slots__ = ("of_later_views", "own_end", "own_start")

    def __init__(self) -> None:
        self.own_end = NEVER_OFFSET
        self.own_start = 0
        self.of_later_views: Validity | None = None

    def cut(self, end_offset: int) -> None:
        """The log is about to be cut there."""
        self.own_end = end_offset

    def give_up(self, log_start: int) -> None:
        """What lies before is about to be removed."""
        self.own_start = log_start

    @property
    def start_offset(self) -> int:
        """From which offset on files are still there, if nobody else removes them."""
        start_offset, one = self.own_start, self.of_later_views
        while one is not None:
            start_offset, one = max(start_offset, one.own_start), one.of_later_views
        return start_offset

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
        return self.own_end == NEVER_OFFSET
