"""Messages that a consumer has given up, on their way to the stream of its dead letters. Sans-IO.

Rules: a message stays pending in the consumer's state, in no client's hand, until its letter is stored: first the
letter, then the state. One letter of a consumer is under way at a time, in order of the offsets. After a failure the
next one is tried after RETRY_US_MIN, and then ever more rarely, up to RETRY_US_MAX: what is wrong with one letter (the
stream is gone, full, sealed, forbidden) is wrong with the next one, too. One that alone is wrong (it is too large, say)
waits apart, with all of its kind, for a pause of their own, and keeps no other one waiting. While the stream takes none
they wait, too.

    given up ─▶ waits ─▶ under way ─┬─▶ stored: the message leaves the pending ones
                  ▲                 │
                  ├── growing pause ┼─ failed
        apart ────┘                 │
          ▲────── growing pause ────┴─ refused alone

Theory: who crashes between letter and state has the next leader find the message pending, at its last delivery; it is
given up anew, with the same id, and the leader of the other stream knows that letter.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.base import limits
from penstock.base.dead_letters import (
    CONSUMER,
    DELIVERIES,
    LETTER,
    LINE_END,
    NOTE_BYTES,
    OFFSET,
    PARTITION,
    PATH,
    REASON,
    SEQUENCE,
    STREAM,
    SUBJECT,
    TIME,
    VERSION_LINE,
    dead_letter_subject,
    fitting,
    lines_of,
    own_lines,
    shown_reason,
)
from penstock.base.subjects import is_within

RETRY_US_MIN: Final = 1_000_000
RETRY_US_MAX: Final = 60_000_000
PATH_MAX: Final = 8
"""Streams that a message may come through as a dead letter."""
MAX_DELIVER: Final = "max_deliver"
"""The reason of a message that was delivered as often as it may be."""
TERMINATED: Final = "terminated"
_PATH_LINE = f"\r\n{PATH}: ".encode()


class Given(NamedTuple):
    """A message that is given up."""

    offset: int
    deliveries: int
    reason: str
    reply: bytes = b""  # who asked for it is answered there, once it is done


class _Waiting:
    """Letters that wait, with the pause after a failure of one of them."""

    __slots__ = ("due_us", "failure", "failures", "given", "last")

    def __init__(self) -> None:
        self.given: dict[int, Given] = {}
        self.last = -1  # offset of the last one that was sent
        self.due_us = 0  # when the next one may be sent
        self.failure = ""  # why the last attempt failed; empty: it did not
        self.failures = 0  # attempts in a row

    def take(self, now_us: int) -> Given | None:
        """Take the one that is sent next, in a circle by offset; None: none is now."""
        if not self.given or now_us < self.due_us:
            return None
        self.last = min((offset for offset in self.given if offset > self.last), default=min(self.given))
        return self.given.pop(self.last)

    def done(self) -> None:
        """One was taken by the other stream: there is no pause any more."""
        self.failure, self.failures, self.due_us = "", 0, 0

    def failed(self, given: Given, why: str, now_us: int) -> None:
        """One was not: it waits again, and all with it."""
        self.given[given.offset] = given
        self.due_us = now_us + min(RETRY_US_MIN << min(self.failures, 16), RETRY_US_MAX)
        self.failures += 1
        self.failure = why


class LetterQueue:
    """Messages that one consumer has given up under one leadership. Times are elapsed µs."""

    __slots__ = ("_refused", "_taken_from", "_waiting", "stored", "under_way")

    def __init__(self) -> None:
        self._waiting = _Waiting()
        self._refused = _Waiting()  # each of these alone was refused
        self._taken_from = self._waiting  # the one under way
        self.under_way: Given | None = None
        self.stored = 0  # letters, under this leadership

    def __len__(self) -> int:
        return len(self._waiting.given) + len(self._refused.given) + (self.under_way is not None)

    @property
    def offsets(self) -> set[int]:
        """Offsets of all messages whose letters are not stored yet."""
        under_way = [] if self.under_way is None else [self.under_way.offset]
        return {*self._waiting.given, *self._refused.given, *under_way}

    @property
    def failure(self) -> str:
        """Why letters wait; empty: the last attempt did not fail."""
        return self._waiting.failure or self._refused.failure

    def add(self, given: Given) -> None:
        """A message is given up; the first reason counts."""
        is_known = self.under_way is not None and self.under_way.offset == given.offset
        if not is_known and given.offset not in self._refused.given:
            self._waiting.given.setdefault(given.offset, given)

    def next(self, now_us: int) -> Given | None:
        """Return the letter to be sent now, which is under way from then on; None: none is."""
        if self.under_way is not None or now_us < self._waiting.due_us:
            return None
        for one in (self._refused, self._waiting):  # the pause of the refused ones leaves the others their turns
            if (given := one.take(now_us)) is not None:
                self.under_way, self._taken_from = given, one
                return given
        return None

    def done(self) -> None:
        """The letter is stored, or the message is not pending any more."""
        self.under_way = None
        self._waiting.done()
        self._taken_from.done()

    def failed(self, why: str, now_us: int, *, is_alone: bool = False) -> bool:
        """The letter could not be stored: it waits again, apart if `is_alone` refused. Return if that is news."""
        given, self.under_way = self.under_way, None
        one = self._refused if is_alone else self._waiting
        is_news = not one.failure if is_alone else why != one.failure
        if given is not None:
            one.failed(given, why, now_us)
        return is_news

    @property
    def wake_us(self) -> int | None:
        """When `next` has a letter; None: not by time."""
        if self.under_way is not None:
            return None
        dues_us = [one.due_us for one in (self._waiting, self._refused) if one.given]
        return max(min(dues_us), self._waiting.due_us) if dues_us else None


class Origin(NamedTuple):
    """Origin of a message, and the consumer that gave it up."""

    stream: str
    partition: int
    consumer: str
    consumer_id: bytes
    time: str  # RFC 3339


def letter_id(consumer_id: bytes, offset: int) -> str:
    """Return the id of a letter: that of the consumer and its message, for ever."""
    return f"{consumer_id.hex()}-{offset + 1}"


def path_of(headers: bytes | None, subject: str, stream: str) -> list[str]:
    """Return the streams that a message of a stream came through as a dead letter.

    On a subject of no dead letters the header is one that a publisher has made up.
    """
    at = -1 if headers is None else headers.find(_PATH_LINE)
    if headers is None or at < 0 or not is_within(subject, dead_letter_subject(stream, ">")):
        return []
    begin = at + len(_PATH_LINE)
    names = headers[begin : headers.find(LINE_END, begin)].decode(errors="replace").split(" ")
    return [name for name in names if len(name) <= limits.STREAM_NAME_CHARS_MAX]


def loop(path: list[str], source: str, target: str) -> str:
    """Return why a message may not become a dead letter of `target`; empty: it may."""
    if target in (*path, source):
        way = " ".join([*path, source])
        return f"it would go in a circle: it came through {way}, and {target} has its dead letters"
    if len(path) >= PATH_MAX:
        return f"it came through {len(path)} streams as a dead letter already, the limit is {PATH_MAX}"
    return ""


def letter_headers(
    given: Given, origin: Origin, subject: str, headers: bytes | None, path: list[str], room: int
) -> bytes:
    """Return the header block of a letter, of at most `room` bytes, if its own headers fit. `path`: see `path_of`.

    Headers of the message that do not fit are left out, from the last one on; the reason says so.
    """
    own_path = f"{PATH}: ".encode()
    theirs = [line for line in lines_of(headers or b"") if not line.startswith(own_path)]
    fields = {
        REASON: shown_reason(given.reason),
        DELIVERIES: str(given.deliveries),
        CONSUMER: origin.consumer,
        STREAM: origin.stream,
        PARTITION: str(origin.partition),
        OFFSET: str(given.offset),
        SEQUENCE: str(given.offset + 1),
        SUBJECT: subject,
        TIME: origin.time,
        LETTER: letter_id(origin.consumer_id, given.offset),
        PATH: " ".join([*path, origin.stream]),
    }
    theirs = [line for line in theirs if line.partition(b":")[0].decode(errors="replace") not in fields]
    room = min(room, limits.HEADER_BLOCK_BYTES_MAX) - len(VERSION_LINE) - len(LINE_END)
    kept = fitting(theirs, room - len(own_lines(fields)))
    if len(kept) < len(theirs):
        kept = fitting(theirs, room - len(own_lines(fields)) - NOTE_BYTES)
        left = f"the last {len(theirs) - len(kept)} of {len(theirs)} headers"
        fields[REASON] = f"{fields[REASON]} (left out: {left})"
    return VERSION_LINE + own_lines(fields) + b"".join(kept) + LINE_END
