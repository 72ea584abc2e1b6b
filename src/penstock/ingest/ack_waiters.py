"""Publishers in NATS that wait for the acks of a batch's rows, and their answers.

Rules: only bytes, so that the memory of waiting acks is known, and does not keep the read buffer alive. There are two
kinds: those with a reply subject (`hot.acks`), and envelopes (`hot.envelope_acks`).
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.hot import envelope_acks
from penstock.hot.acks import (
    enveloped_again,
    enveloped_pubacks_again,
    pubacks,
    pubacks_again,
    waiting,
    waiting_again,
    waiting_count,
)
from penstock.hot.classification import RefusedMessage
from penstock.hot.message_group import MessageGroup
from penstock.hot.refusals import answers_alike
from penstock.ingest import acks
from penstock.ingest.admission import AdmissionRules


class AckDetails(NamedTuple):
    """Durability of a batch, as its acks state it."""

    partition: int
    leader_epoch: int
    replicas: int
    fsynced: bool
    domain: str = ""  # the JetStream domain that acks name, as nats-server's do; not those of envelopes


class AckWaiters(NamedTuple):
    """Publishers that wait for rows of one batch."""

    replies: bytes
    enveloped: bytes

    @property
    def size_bytes(self) -> int:
        """Memory in use."""
        return len(self.replies) + len(self.enveloped)

    @property
    def acks_count(self) -> int:
        """Number of waiting publishers."""
        return waiting_count(self.replies) + envelope_acks.waiting_count(self.enveloped)

    def ack_commands(self, rules: AdmissionRules, base_offset: int, timestamp_us: int, got: AckDetails) -> bytes:
        """Return `PUB` commands for all; their rows begin at `base_offset`."""
        *which, fsynced, domain = got
        found = b""
        if self.replies:
            tails = acks.ack_tails(*which, domain)
            found = pubacks(rules.name, self.replies, base_offset, tails[fsynced])
        if self.enveloped:
            tail = acks.envelope_tails(*which)[fsynced]
            found += envelope_acks.acks(self.enveloped, rules.ack_head, base_offset, timestamp_us, tail)
        return found

    def refusal_commands(self, rules: AdmissionRules, error: acks.AckError) -> bytes:
        """Return `PUB` commands that send all of them the same error."""
        found = acks.error_acks(rules.name, self.replies, error) if self.replies else b""
        if self.enveloped:
            found += acks.envelope_refusals(rules.name, rules.ack_head, self.enveloped, error)
        return found


def waiters(rows: MessageGroup, start: int, end: int, *, is_early: bool) -> AckWaiters | None:
    """Return the publishers waiting for rows [start, end), or None; `is_early`: those whose ack is due once written."""
    replies = waiting(rows, start, end, is_early)
    enveloped = envelope_acks.waiting(rows, start, end, is_early) if rows.has_enveloped else b""
    return AckWaiters(replies, enveloped) if replies or enveloped else None


class DuplicateWaiters(NamedTuple):
    """Publishers of duplicates, and the offsets of the stored messages."""

    replies: bytes
    originals: bytes  # see `hot.acks.waiting_again`
    enveloped: list[tuple[bytes, int]]

    @property
    def size_bytes(self) -> int:
        """Memory in use."""
        return len(self.replies) + len(self.originals) + sum([len(record) + 8 for record, _ in self.enveloped])

    @property
    def acks_count(self) -> int:
        """Number of waiting publishers."""
        return waiting_count(self.replies) + len(self.enveloped)

    @property
    def last(self) -> int:
        """The greatest of the offsets."""
        return max([*memoryview(self.originals).cast("q"), *[offset for _, offset in self.enveloped]])

    def ack_commands(self, rules: AdmissionRules, base_offset: int, timestamp_us: int, got: AckDetails) -> bytes:
        """Return `PUB` commands for all; `base_offset` is not used."""
        *which, fsynced, domain = got
        found = b""
        if self.replies:
            found = pubacks_again(rules.name, self.replies, self.originals, acks.ack_tails(*which, domain)[fsynced])
        if self.enveloped:
            tail = acks.envelope_tails(*which)[fsynced]
            found += enveloped_pubacks_again(self.enveloped, rules.ack_head, timestamp_us, tail)
        return found

    def refusal_commands(self, rules: AdmissionRules, error: acks.AckError) -> bytes:
        """Return `PUB` commands that send all of them the same error."""
        return AckWaiters(self.replies, b"".join([record for record, _ in self.enveloped])).refusal_commands(
            rules, error
        )


class BatchWaiter(NamedTuple):
    """The publisher of an atomic batch: one ack tells its last message's sequence, and the number of messages."""

    reply: bytes
    batch_id: bytes
    messages: int

    @property
    def size_bytes(self) -> int:
        """Memory in use."""
        return len(self.reply) + len(self.batch_id)

    @property
    def acks_count(self) -> int:
        """Number of waiting publishers."""
        return 1

    def ack_commands(self, rules: AdmissionRules, base_offset: int, timestamp_us: int, got: AckDetails) -> bytes:
        """Return the `PUB` command; the batch's rows begin at `base_offset`."""
        *which, fsynced, domain = got
        tail = acks.batch_tail(acks.ack_tails(*which, domain)[fsynced], self.batch_id, self.messages)
        return pubacks(rules.name, self.reply + b" ", base_offset + self.messages - 1, tail)

    def refusal_commands(self, rules: AdmissionRules, error: acks.AckError) -> bytes:
        """Return the `PUB` command that sends the error."""
        return self.answer(acks.error_body(rules.name, error))

    def answer(self, body: bytes) -> bytes:
        """Return the `PUB` command that sends an error body."""
        return answers_alike(self.reply + b" ", body)


def again(group: MessageGroup, found: list[RefusedMessage], begin: int, end: int) -> DuplicateWaiters | None:
    """Return the publishers of those duplicates in `found` (rows of `group`) stored in [begin, end), or None."""
    replies, originals = waiting_again(group, found, begin, end)
    enveloped = enveloped_again(found, begin, end)
    return DuplicateWaiters(replies, originals, enveloped) if replies or enveloped else None
