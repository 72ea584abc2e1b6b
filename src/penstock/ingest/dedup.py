"""The message ids of one leadership: being read from the log, known, or not to be had; see `node.dedup`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

from penstock.hot.message_ids import Elsewhere, MessageIds

Found = list[tuple[int, bytes]]
"""Rows and ids of a batch, as `hot.rows.Asked` has them."""

_NOBODY: Mapping[int, int] = MappingProxyType({})


class Dedup:
    """`failure` says why the ids could not be read; empty: they are known, or will be.

    `donors` are partitions whose ids must be known as well, up to an offset of each; they follow from `marks`.
    """

    __slots__ = (
        "_elsewhere", "_ids", "_late", "_late_count", "_now_us", "_own", "_start", "_starts", "donors", "failure",
        "ids_max", "marks", "window_us",
    )  # fmt: skip

    def __init__(
        self,
        window_us: int,
        ids_max: int,
        now_us: int,
        marks: tuple[object, ...] = (),
        donors: Mapping[int, int] = _NOBODY,
    ) -> None:
        """`now_us` is no earlier than the last timestamp of the log."""
        self.window_us = window_us
        self.ids_max = ids_max
        self.marks = marks
        self.donors = donors
        self.failure = ""
        self._now_us = now_us
        self._own: MessageIds | None = None  # read, while those of donors are not here
        self._elsewhere: Elsewhere | None = None  # the other way round
        self._ids: MessageIds | None = None
        self._late: deque[tuple[Found, int, int]] = deque()  # ids of what was appended meanwhile
        self._late_count = 0
        self._start = 0  # what is below was given up while this was read
        self._starts: dict[int, int] = {}  # the same of donors

    @property
    def is_reading(self) -> bool:
        """Whether the ids are not known yet."""
        return self._ids is None and not self.failure

    @property
    def since_us(self) -> int:
        """Where the window begins."""
        return self._now_us - self.window_us

    @property
    def count(self) -> int:
        """How many ids are known."""
        return 0 if self._ids is None else len(self._ids)

    @property
    def forgotten(self) -> int:
        """How many went before their time, since they are read."""
        return 0 if self._ids is None else self._ids.forgotten

    def known(self, ids: MessageIds) -> None:
        """They are read."""
        self._own = ids
        self._settle()

    def known_elsewhere(self, elsewhere: Elsewhere) -> None:
        """So are those of the donors."""
        self._elsewhere = elsewhere
        self._settle()

    def _settle(self) -> None:
        ids = self._own
        if ids is None or (self.donors and self._elsewhere is None):
            return
        for found, base_offset, timestamp_us in self._late:
            ids.note(found, base_offset, timestamp_us)
        self._late.clear()
        ids.forget_below(self._start)
        if self._elsewhere is not None:
            for partition, start in self._starts.items():
                self._elsewhere.forget_below(partition, start)
            ids.know(self._elsewhere)
        self._ids, self._own, self._elsewhere = ids, None, None

    def at(self, timestamp_us: int) -> int:
        """The timestamp that a message gets which would else have this one: what is forgotten is older than that."""
        self._now_us = max(self._now_us, timestamp_us)
        return self._now_us

    def ids(self, now_us: int) -> MessageIds | None:
        """Those of the window that ends now, if they are known."""
        assert now_us == self._now_us, (now_us, self._now_us)
        if self._ids is not None:
            self._ids.expire(self.since_us)
        return self._ids

    def written(self, timestamp_us: int, end: int) -> None:
        """What was looked up, and is below `end`, is written."""
        if self._ids is not None:
            self._ids.stamp(timestamp_us, end)

    def forget_below(self, start: int) -> None:
        """An operator has given up the messages below this offset: who sends one again means it."""
        self._start = max(self._start, start)
        if self._ids is not None:
            self._ids.forget_below(start)

    def forget_elsewhere(self, donor: int, start: int) -> None:
        """The same of a donor. It may have told of these before it knew that itself."""
        if donor in self.donors and self._starts.get(donor, 0) < start:
            self._starts[donor] = start
            if self._ids is not None:
                self._ids.forget_elsewhere(donor, start)

    def cut(self, end: int) -> None:
        """What was looked up from `end` on was not written."""
        if self._ids is not None:
            self._ids.cut(end)

    def appended(self, found: Found, base_offset: int, timestamp_us: int) -> None:
        """A batch came over the socket: it is stored whole, and its ids are known from now on."""
        if self._ids is not None:
            self._ids.note(found, base_offset, timestamp_us)
        elif found and not self.failure:
            self._late.append((found, base_offset, timestamp_us))
            self._late_count += len(found)
            while self._late_count - len(self._late[0][0]) >= self.ids_max:  # newer ones are as many as are kept
                self._late_count -= len(self._late.popleft()[0])
