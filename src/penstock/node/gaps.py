"""When nobody listened: the times in which the broker was not subscribed, kept across restarts.

Rules: a gap begins when the connection is lost (or the broker stops) and ends when NATS has confirmed the
subscriptions again. What was published in between was neither stored nor acked. The last GAPS_MAX are kept. A line that
cannot be read stays in the file as it is.

    gaps.jsonl   one JSON object a line; the last line may be open (no end): nobody listened when it was written
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from penstock.base.ids import TimestampUs
from penstock.messages import GapInfo
from penstock.vfs import Vfs

GAPS_PATH = "gaps.jsonl"
GAPS_MAX = 1_000

_decoder = msgspec.json.Decoder(GapInfo)


@dataclass(frozen=True, slots=True)
class GapsSave:
    """A disk task: writes all gaps of one moment, whole and by rename. One at a time."""

    vfs: Vfs
    content: bytes

    def run(self) -> None:
        """Write and sync."""
        file = self.vfs.open(GAPS_PATH + ".new", create=True)
        try:
            file.truncate(0)
            file.write_at(0, self.content)
            file.sync()
        finally:
            file.close()
        self.vfs.rename(GAPS_PATH + ".new", GAPS_PATH)
        self.vfs.sync_dir("")


class Gaps:
    """The gaps of one broker, oldest first."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        self._closed: deque[GapInfo] = deque(maxlen=GAPS_MAX)
        self._open: GapInfo | None = None
        self._unknown: list[bytes] = []  # lines that this version cannot read

    def load(self, *, last_sign_of_life_us: int, now_us: int) -> None:
        """Read what earlier runs left, and begin the gap that this start will end.

        `last_sign_of_life_us` is when the broker is last known to have listened, for a stop that left no mark.
        """
        for line in self._lines():
            try:
                gap = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self._unknown.append(line)
                continue
            if gap.end_us is None:
                self._open = gap
            else:
                self._closed.append(gap)
        if self._open is None and (last_sign_of_life_us or self._closed):
            start_us = max(last_sign_of_life_us, self._closed[-1].end_us or 0 if self._closed else 0)
            self._open = GapInfo(
                start_us=TimestampUs(min(start_us, now_us)), reason="the broker stopped without saying so"
            )

    def _lines(self) -> list[bytes]:
        try:
            file = self._vfs.open(GAPS_PATH, read_only=True)
        except FileNotFoundError:
            return []
        try:
            return [line for line in file.read_at(0, file.size()).split(b"\n") if line]
        finally:
            file.close()

    @property
    def is_open(self) -> bool:
        """Whether nobody listens now."""
        return self._open is not None

    def begin(self, now_us: int, reason: str) -> None:
        """Nobody listens from now on. A gap that is open already keeps its start."""
        if self._open is None:
            self._open = GapInfo(start_us=TimestampUs(now_us), reason=reason)

    def end(self, now_us: int) -> GapInfo | None:
        """The subscriptions are confirmed: the gap that this ends, or None."""
        if self._open is None:
            return None
        end_us = TimestampUs(max(now_us, self._open.start_us))
        gap = GapInfo(start_us=self._open.start_us, end_us=end_us, reason=self._open.reason)
        self._open = None
        self._closed.append(gap)
        return gap

    def save(self) -> GapsSave:
        """The task that writes what is known now."""
        lines = [*self._unknown, *(msgspec.json.encode(gap) for gap in self.all())]
        return GapsSave(self._vfs, b"".join(line + b"\n" for line in lines))

    def all(self) -> tuple[GapInfo, ...]:
        """All that are kept, oldest first; the last may be open."""
        return (*self._closed, *((self._open,) if self._open is not None else ()))

    def since(self, start_us: int, limit: int = 20) -> tuple[GapInfo, ...]:
        """The latest ones that reach past `start_us`."""
        return tuple(gap for gap in self.all() if gap.end_us is None or gap.end_us > start_us)[-limit:]
