"""Who waits in NATS for the acks of a batch's rows, and what they are told.

Rules: bytes and nothing else, so that what waits for a disk is as large as it says, and not tied to what it was read
with. There are two kinds: those with a reply subject (`hot.acks`), and those who published in an envelope
(`hot.envelope_acks`).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.hot import envelope_acks
from penstock.hot.acks import (
    enveloped_again,
    enveloped_pubacks_again,
    pubacks_again,
    waiting,
    waiting_again,
    waiting_count,
)
from penstock.hot.group import Group
from penstock.hot.verdicts import Refused
from penstock.ingest import acks
from penstock.ingest.admission import Rules


class Got(NamedTuple):
    """What an ack says of how a batch is stored."""

    partition: int
    leader_epoch: int
    replicas: int
    fsynced: bool


class Waiters(NamedTuple):
    """Who waits for rows of one batch."""

    replies: bytes
    enveloped: bytes

    @property
    def size_bytes(self) -> int:
        """What they hold of the memory."""
        return len(self.replies) + len(self.enveloped)

    @property
    def acks_count(self) -> int:
        """How many they are."""
        return waiting_count(self.replies) + envelope_acks.waiting_count(self.enveloped)

    def ack_commands(self, rules: Rules, base_offset: int, timestamp_us: int, got: Got) -> bytes:
        """`PUB` commands for all: their rows lie from `base_offset` on."""
        *which, fsynced = got
        found = b""
        if self.replies:
            tails = acks.ack_tails(*which)
            found = acks.pubacks(rules.name, self.replies, base_offset, tails[fsynced])
        if self.enveloped:
            tail = acks.envelope_tails(*which)[fsynced]
            found += envelope_acks.acks(self.enveloped, rules.ack_head, base_offset, timestamp_us, tail)
        return found

    def refusal_commands(self, rules: Rules, error: acks.AckError) -> bytes:
        """`PUB` commands that tell all the same error."""
        found = acks.error_acks(rules.name, self.replies, error) if self.replies else b""
        if self.enveloped:
            found += acks.envelope_refusals(rules.name, rules.ack_head, self.enveloped, error)
        return found


def waiters(rows: Group, start: int, end: int, *, is_early: bool) -> Waiters | None:
    """Who waits for the rows [start, end), `is_early`: for acks that come once written. None if nobody does."""
    replies = waiting(rows, start, end, is_early)
    enveloped = envelope_acks.waiting(rows, start, end, is_early) if rows.has_enveloped else b""
    return Waiters(replies, enveloped) if replies or enveloped else None


class Again(NamedTuple):
    """Who sent what is stored already, and where each of those messages is."""

    replies: bytes
    originals: bytes  # see `hot.acks.waiting_again`
    enveloped: list[tuple[bytes, int]]

    @property
    def size_bytes(self) -> int:
        """What they hold of the memory."""
        return len(self.replies) + len(self.originals) + sum([len(record) + 8 for record, _ in self.enveloped])

    @property
    def acks_count(self) -> int:
        """How many they are."""
        return waiting_count(self.replies) + len(self.enveloped)

    @property
    def last(self) -> int:
        """The greatest of the offsets."""
        return max([*memoryview(self.originals).cast("q"), *[offset for _, offset in self.enveloped]])

    def ack_commands(self, rules: Rules, base_offset: int, timestamp_us: int, got: Got) -> bytes:
        """`PUB` commands for all; the offset is not asked for."""
        *which, fsynced = got
        found = b""
        if self.replies:
            found = pubacks_again(rules.name, self.replies, self.originals, acks.ack_tails(*which)[fsynced])
        if self.enveloped:
            tail = acks.envelope_tails(*which)[fsynced]
            found += enveloped_pubacks_again(self.enveloped, rules.ack_head, timestamp_us, tail)
        return found

    def refusal_commands(self, rules: Rules, error: acks.AckError) -> bytes:
        """`PUB` commands that tell all the same error."""
        return Waiters(self.replies, b"".join([record for record, _ in self.enveloped])).refusal_commands(rules, error)


def again(group: Group, found: list[Refused], begin: int, end: int) -> Again | None:
    """Of `found`, rows of `group`, those whose messages are stored in [begin, end) and who are to hear it."""
    replies, originals = waiting_again(group, found, begin, end)
    enveloped = enveloped_again(found, begin, end)
    return Again(replies, originals, enveloped) if replies or enveloped else None
