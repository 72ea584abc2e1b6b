"""Offsets that existing views may still read after a truncation or retention."""

from __future__ import annotations

NEVER_OFFSET = 2**63  # beyond every offset


class ViewValidity:
    """Offset bounds shared by a log and its views. The log lowers the end before it truncates, so a view that then
    finds a file changed knows that it is no corruption. Views from before a truncation are also bound by later ones.
    """

    __slots__ = ("of_later_views", "own_end", "own_start")

    def __init__(self) -> None:
        self.own_end = NEVER_OFFSET
        self.own_start = 0
        self.of_later_views: ViewValidity | None = None

    def cut(self, end_offset: int) -> None:
        """Limit the views: the log is about to be truncated to `end_offset`."""
        self.own_end = end_offset

    def give_up(self, log_start: int) -> None:
        """Limit the views: messages below `log_start` are about to be removed."""
        self.own_start = log_start

    @property
    def start_offset(self) -> int:
        """Offset from which segment files still exist, unless removed by others."""
        start_offset, one = self.own_start, self.of_later_views
        while one is not None:
            start_offset, one = max(start_offset, one.own_start), one.of_later_views
        return start_offset

    def later(self) -> ViewValidity:
        """Return the object for views taken after a truncation."""
        self.of_later_views = ViewValidity()
        return self.of_later_views

    @property
    def end_offset(self) -> int:
        """End of the offsets that a view may still read."""
        end_offset, one = self.own_end, self.of_later_views
        while one is not None:
            end_offset, one = min(end_offset, one.own_end), one.of_later_views
        return end_offset

    @property
    def is_whole(self) -> bool:
        """True if the log was not truncated, so that files are what the views assume."""
        return self.own_end == NEVER_OFFSET
