"""Acks and errors from the streams that store the messages that are relayed.

Rules: no I/O; `nats_output` has the connection. A reply subject is `<inbox>.<attempt>.<partition>-<offset>`. An answer
that does not have JetStream's form comes from some other subscriber, and is ignored.

| an answer                                     | what it means                                             |
|-----------------------------------------------|-----------------------------------------------------------|
| an ack                                        | a stream has the message                                  |
| an ack with `duplicate`                       | the same: the stream has a message with this Nats-Msg-Id  |
| an error of class 429 or 503, no responders   | temporary: the message is published again                 |
| any other error                               | rejected: the relay ends                                  |

A duplicate does not end the relay, because after a crash it publishes some messages again. It may also be a different
message with the same id, so the relay counts duplicates and prints their number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.base.subjects import matches

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.ops.relay.frames import SubjectMapping

_SUBJECTS_KNOWN_MAX = 65_536
_PLACE = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})-([0-9]{1,19})")  # attempt, partition, offset
_AGAIN = (429, 503)
_NO_RESPONDERS = "503"
NOBODY_LISTENS = (
    "no stream listens on the target. Make one that stores it (`penstock stream create NAME SUBJECT`), resume a paused "
    "one (`penstock stream resume NAME`), or give --not-stored to wait for no acks"
)


class RelayRefusal(NamedTuple):
    """A stream's rejection of a message."""

    partition: int
    offset: int
    stream: str
    text: str


class Answer(NamedTuple):
    """One answer of a stream. `error` is empty for an ack; `is_for_now` marks a temporary error."""

    stream: str
    error: str = ""
    is_for_now: bool = False
    is_duplicate: bool = False


class Storing:
    """Number of acks that each message needs: one per matching pattern in `patterns`, and `at_least` that many."""

    def __init__(self, patterns: Sequence[str] = (), *, at_least: int = 0) -> None:
        self._patterns = tuple(patterns)
        self._at_least = at_least
        self._known: dict[str, int] = {}

    @property
    def is_known(self) -> bool:
        """True if some message needs an ack."""
        return bool(self._patterns) or self._at_least > 0

    def acks_of(self, subject: str) -> int:
        """Return the number of acks that a message on this subject needs."""
        found = self._known.get(subject)
        if found is None:
            if len(self._known) >= _SUBJECTS_KNOWN_MAX:
                self._known.clear()
            found = max(self._at_least, sum(matches(one, subject) for one in self._patterns))
            self._known[subject] = found
        return found

    def needed(self, rows: pa.RecordBatch, mapping: SubjectMapping) -> dict[int, int]:
        """Return the number of acks that each message needs on its mapped subject, by offset."""
        subjects = rows.column("subject").dictionary_encode()
        acks = [self.acks_of(mapping.of(subject)) for subject in subjects.dictionary.to_pylist()]
        each = map(acks.__getitem__, subjects.indices.to_pylist())
        return dict(zip(rows.column("offset").to_pylist(), each, strict=True))


class Answers:
    """Collects the answers to one attempt, the messages of a partition sent together. `needed`: acks by offset."""

    def __init__(self, attempt: int, partition: int, needed: dict[int, int]) -> None:
        self.attempt = attempt
        self.duplicates = 0
        self.refused: RelayRefusal | None = None  # the rejected message with the lowest offset so far
        self.later = ""  # temporary error, after which messages are published again
        self._partition = partition
        self._missing = {offset: count for offset, count in needed.items() if count}

    def take(self, reply: str, status: str | None, data: bytes) -> None:
        """Process an answer; `reply` is the end of its subject: `<attempt>.<partition>-<offset>`."""
        place = _PLACE.fullmatch(reply)
        if place is None:
            return
        attempt, partition, offset = map(int, place.groups())
        if status == _NO_RESPONDERS:
            if attempt == self.attempt and offset in self._missing:
                self.later = NOBODY_LISTENS
            return
        answer = parse(data)
        if answer is None:
            return
        if answer.error and not answer.is_for_now:
            refused = RelayRefusal(partition, offset, answer.stream, answer.error)
            if self.refused is None or refused < self.refused:
                self.refused = refused
        elif attempt != self.attempt:
            return  # acks and temporary errors of earlier attempts do not count
        elif answer.error:
            self.later = f"stream {answer.stream}: {answer.error}"
        else:
            self.duplicates += answer.is_duplicate
            left = self._missing.get(offset, 0) - 1
            if left > 0:
                self._missing[offset] = left
            else:
                self._missing.pop(offset, None)

    @property
    def is_settled(self) -> bool:
        """True if all acks have arrived, or an error ends the wait."""
        return not self._missing or self.refused is not None or bool(self.later)

    @property
    def first_missing(self) -> int | None:
        """The first offset that lacks an ack; None if there is none."""
        return min(self._missing, default=None)


def parse(data: bytes) -> Answer | None:
    """Decode an ack or error of a stream, Penstock's or JetStream's; None for anything else."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(found, dict) or not isinstance(found.get("stream", ""), str):
        return None
    stream, error = found.get("stream", ""), found.get("error")
    if isinstance(error, dict) and isinstance(error.get("code"), int) and "err_code" in error:
        text = f"{error.get('description', 'no reason given')} ({error['err_code']})"
        return Answer(stream, text, is_for_now=error["code"] in _AGAIN)
    if not stream or not isinstance(found.get("seq"), int):
        return None
    return Answer(stream, is_duplicate=found.get("duplicate") is True)
