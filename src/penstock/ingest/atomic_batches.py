"""Atomic batches of JetStream (ADR-50 of NATS): messages that are stored together, one behind the other, or not at all.

Rules: the messages of a batch are kept in memory until the one with Nats-Batch-Commit comes; then they are admitted
together, against the log as it is then, and become one batch of the log. Nothing is written before. What is kept ends
with the leadership: a publisher whose leader is gone is told so by the answer to its next message. The checks, their
order and their codes are nats-server's (`processJetStreamAtomicBatchMsg`). Of the batches of a broker, and of their
memory, each stream has a share (`FairShares`), so that no stream's batches keep out those of others.

    message 1 ─▶ kept, empty ack ─▶ message 2 ─▶ kept ─▶ … ─▶ message n with the commit ─▶ ready ─▶ stored, or refused
                      │
                      └─ a gap, a wrong commit, too many messages, 10 s without one ─▶ abandoned

| what happens                                       | answer | the batch                | advisory    |
|----------------------------------------------------|--------|--------------------------|-------------|
| its id is longer than 64 bytes                     | 10179  | is not touched           |             |
| a message has no sequence                          | 10175  | is not touched           |             |
| a message is larger than the stream takes          | 10054  | is not touched           |             |
| its first message would be one batch too many, of  |        |                          |             |
| the stream, of all, or of the stream's share       | 10210  | does not begin           |             |
| it is not known, and the message is not the first  | 10176  |                          |             |
| the commit is neither `1` nor `eob`                | 10200  | is abandoned             |             |
| a message requires a higher level of the API       | 10185  | is abandoned             | unsupported |
| a sequence is missing, or only `eob` came          | 10176  | is abandoned             | incomplete  |
| it has too many messages, or bytes                 | 10199  | is abandoned             | large       |
| all batches together take too much memory, or the  |        |                          |             |
| stream's more than its share                       | 10210  | is abandoned             | incomplete  |
| no message came for ATOMIC_BATCH_IDLE_MS           |        | is abandoned             | timeout     |
| a message names another stream                     | 10060  | is abandoned             | incomplete  |
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from penstock.base import limits
from penstock.base.fair_shares import FairShares
from penstock.base.subjects import RESERVED_PREFIXES
from penstock.hot.headers import HeaderFields
from penstock.hot.message_group import MessageGroup
from penstock.hot.subjects import is_jetstream_ack
from penstock.ingest import acks
from penstock.ingest.admission import AdmissionRules

MARK = b"\r\nNats-Batch-Id:"
"""In the bytes of each group with a message of a batch."""

_KEPT_BESIDE = limits.ATOMIC_BATCH_MESSAGE_BYTES - limits.ROW_BYTES
"""Bytes that a kept message takes in memory beside its bytes in the log."""
_IDLE_US = limits.ATOMIC_BATCH_IDLE_MS * 1_000
_RESERVED = tuple(prefix.encode() for prefix in RESERVED_PREFIXES)
_REQUIRED_LEVEL = re.compile(rb"\r\nNats-Required-Api-Level:[ \t]*([^\r]*?)[ \t]*(?=\r\n)")
_LEVEL = re.compile(rb"[+-]?\d{1,9}")
_SEQUENCE_MAX = 2**64 - 1
_COMMITTED = b"Nats-Batch-Commit: 1\r\n\r\n"


class AbandonReason(StrEnum):
    """Why a batch is abandoned, as its advisory says."""

    TIMEOUT = "timeout"
    LARGE = "large"
    INCOMPLETE = "incomplete"
    UNSUPPORTED = "unsupported"


class Commit(StrEnum):
    """A message's part in the end of its batch."""

    NO = ""
    WITH_THIS = "1"  # the message is the batch's last one
    BEFORE_THIS = "eob"  # the last one came before; this one is not stored
    INVALID = "?"


class BatchMessage(NamedTuple):
    """One message of an atomic batch. `sequence`: its place in the batch, from 1 on; None: it has none."""

    batch_id: bytes
    sequence: int | None
    commit: Commit
    subject: bytes
    reply: bytes | None
    headers: bytes
    value: bytes | None
    stream: bytes  # that it expects; empty: any
    ack: bytes  # the level of the ack that it asks for

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in the log."""
        return len(self.subject) + len(self.headers) + len(self.value or b"") + limits.ROW_BYTES


class KeptMessage(NamedTuple):
    """The parts of a message that are stored; what answers and checks need of it is over."""

    subject: bytes
    headers: bytes
    value: bytes | None


class ReadyBatch(NamedTuple):
    """A batch whose commit has come. `group` has its messages without reply subjects, to be admitted as one."""

    batch_id: bytes
    group: MessageGroup
    commit: BatchMessage
    size_bytes: int


class Taken(NamedTuple):
    """The consequence of one message."""

    error: acks.AckError | None = None
    abandoned: AbandonReason | None = None  # its batch, with an advisory
    ready: ReadyBatch | None = None
    is_elsewhere: bool = False  # it is meant for another stream


def pieces(group: MessageGroup, *, skips_reserved: bool) -> Iterator[MessageGroup]:
    """Yield the messages of a group in order, those of batches apart from the others.

    A piece has messages without a batch only, or messages of batches without a commit, or one commit: so each piece can
    wait for what it depends on without being taken twice. Messages that are too large are in the first piece.
    """
    kinds = [_kind(group, row, skips_reserved=skips_reserved) for row in range(group.count)]
    begin, too_large = 0, group.too_large
    if too_large and (not kinds or kinds[0] != 0):
        first = group.part(0, 0)
        first.too_large.extend(too_large)
        too_large = []
        yield first
    for row in range(1, len(kinds) + 1):
        if row < len(kinds) and kinds[row] == kinds[begin] and kinds[row] != _COMMITS:
            continue
        piece = group.part(begin, row)
        piece.too_large.extend(too_large)
        too_large, begin = [], row
        yield piece


_PLAIN, _OF_BATCH, _COMMITS = range(3)


def _kind(group: MessageGroup, row: int, *, skips_reserved: bool) -> int:
    """Return if a message is of a batch, and if it commits one. A JetStream consumer's delivery is of none."""
    block, reply = group.headers(row), group.reply(row)
    if block is None or MARK not in block or (reply is not None and is_jetstream_ack(reply, 0, len(reply))):
        return _PLAIN
    if skips_reserved and group.subject(row).startswith(_RESERVED):
        return _PLAIN
    fields = HeaderFields()
    fields.read(block, 0, len(block))
    if not fields.batch_end > fields.batch >= 0:
        return _PLAIN
    return _OF_BATCH if fields.batch_commit < 0 else _COMMITS


def is_of_batch(group: MessageGroup, *, skips_reserved: bool) -> bool:
    """True if the messages of one of the `pieces` are of batches."""
    return MARK in group.data and group.count > 0 and _kind(group, 0, skips_reserved=skips_reserved) != _PLAIN


def message_at(group: MessageGroup, row: int) -> BatchMessage:
    """Return a message of a batch."""
    block = group.headers(row) or b""
    fields = HeaderFields()
    fields.read(block, 0, len(block))
    found = b"" if fields.batch_commit < 0 else block[fields.batch_commit : fields.batch_commit_end]
    commit = Commit.NO if fields.batch_commit < 0 else _COMMITS_OF.get(found, Commit.INVALID)
    return BatchMessage(
        block[fields.batch : fields.batch_end],
        _sequence(b"" if fields.batch_sequence < 0 else block[fields.batch_sequence : fields.batch_sequence_end]),
        commit,
        group.subject(row),
        group.reply(row),
        block,
        group.value(row),
        b"" if fields.stream < 0 else block[fields.stream : fields.stream_end],
        b"" if fields.ack < 0 else block[fields.ack : fields.ack_end],
    )


_COMMITS_OF = {b"1": Commit.WITH_THIS, b"eob": Commit.BEFORE_THIS}


def _sequence(digits: bytes) -> int | None:
    """Return the number; None if it is none, or does not fit into 64 bits."""
    if not (digits.isdigit() and len(digits) <= limits.ATOMIC_BATCH_ID_BYTES_MAX):
        return None
    number = int(digits)
    return number if number <= _SEQUENCE_MAX else None


class OpenBatches:
    """The batches that a broker keeps, of all streams, and their memory; each stream has a share of both."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches = FairShares()
        self._bytes = FairShares()

    @property
    def count(self) -> int:
        """Number of batches."""
        return self._batches.used

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return self._bytes.used

    def has_room(self, stream: str) -> bool:
        """True if a stream may have one more batch."""
        return self._batches.fits(stream, 1, limits.ATOMIC_BATCHES_MAX)

    def has_memory(self, stream: str, size_bytes: int) -> bool:
        """True if a stream's batches may take so much more memory."""
        return self._bytes.fits(stream, size_bytes, limits.ATOMIC_BATCHES_BYTES_MAX)

    def began(self, stream: str) -> None:
        """Count a batch."""
        self._batches.add(stream)

    def kept(self, stream: str, size_bytes: int) -> None:
        """Count the memory of a message."""
        self._bytes.add(stream, size_bytes)

    def dropped(self, stream: str, size_bytes: int) -> None:
        """Count a batch, and the memory of its messages, no more."""
        self._batches.remove(stream)
        self._bytes.remove(stream, size_bytes)


class _Batch:
    """The messages of a batch so far."""

    __slots__ = ("last_us", "messages", "size_bytes")

    def __init__(self) -> None:
        self.messages: list[KeptMessage] = []
        self.size_bytes = 0  # in the log
        self.last_us = 0


class AtomicBatches:
    """The batches of one stream that are not committed yet, by id, the one that has waited longest first."""

    __slots__ = ("_all", "_batches", "_sharer")

    def __init__(self, broker: OpenBatches, sharer: str) -> None:
        """`sharer`: the stream, of whose share they are taken; not empty."""
        self._all = broker
        self._sharer = sharer
        self._batches: dict[bytes, _Batch] = {}

    def __len__(self) -> int:
        return len(self._batches)

    def take(self, message: BatchMessage, rules: AdmissionRules, now_us: int) -> Taken:
        """Keep a message, or refuse it. `now_us`: elapsed time."""
        batch_id, sequence = message.batch_id, message.sequence
        if message.stream not in (b"", rules.name):
            return self._named_elsewhere(message)
        if (size := len(message.headers) + len(message.value or b"")) > rules.message_bytes_max:
            return Taken(acks.message_too_large(size, rules.message_bytes_max))
        if len(batch_id) > limits.ATOMIC_BATCH_ID_BYTES_MAX:
            return Taken(acks.batch_id_invalid())
        if sequence is None:
            return Taken(acks.batch_sequence_missing())
        batch = self._batches.get(batch_id)
        if batch is None:
            if (refusal := self._refusal_of_first(message, sequence)) is not None:
                return Taken(refusal)
            batch = self._batches[batch_id] = _Batch()
            self._all.began(self._sharer)
        if (refused := self._refused(message, sequence, len(batch.messages))) is not None:
            self._drop(batch_id)
            return refused
        if message.commit is not Commit.BEFORE_THIS:
            size_bytes = message.size_bytes
            if (refused := self._too_much(batch, size_bytes)) is not None:
                self._drop(batch_id)
                return refused
            if b"Nats-Required-Api-Level:" in message.headers:  # nats-server does not store it either
                message = message._replace(headers=_REQUIRED_LEVEL.sub(b"", message.headers, count=1))
            batch.messages.append(KeptMessage(message.subject, message.headers, message.value))
            batch.size_bytes += size_bytes
            self._all.kept(self._sharer, size_bytes + _KEPT_BESIDE)
        if message.commit is not Commit.NO:
            self._drop(batch_id)
            return Taken(ready=_ready(batch_id, batch, message))
        batch.last_us = now_us
        self._batches[batch_id] = self._batches.pop(batch_id)  # behind those that have waited longer
        return Taken()

    def _named_elsewhere(self, message: BatchMessage) -> Taken:
        if message.batch_id not in self._batches:
            return Taken(is_elsewhere=True)
        self._drop(message.batch_id)
        return Taken(acks.wrong_stream(), AbandonReason.INCOMPLETE)

    def _refusal_of_first(self, message: BatchMessage, sequence: int) -> acks.AckError | None:
        """Return why a batch that is not known cannot begin with this message."""
        if sequence != 1:
            return acks.batch_too_large(_MOST) if _size(message, sequence) > _MOST_MESSAGES else acks.batch_incomplete()
        if len(self._batches) >= limits.ATOMIC_BATCHES_OF_STREAM_MAX or not self._all.has_room(self._sharer):
            return acks.too_many_batches()
        return None

    def _refused(self, message: BatchMessage, sequence: int, kept: int) -> Taken | None:
        """Return why a batch ends with this message, of which `kept` came before."""
        if message.commit is Commit.INVALID:
            return Taken(acks.batch_commit_invalid())
        level = _REQUIRED_LEVEL.search(message.headers)
        if level is not None and level[1] and not _has_level(level[1]):
            return Taken(acks.api_level_required(), AbandonReason.UNSUPPORTED)
        if sequence != kept + 1 or (sequence == 1 and message.commit is Commit.BEFORE_THIS):
            return Taken(acks.batch_incomplete(), AbandonReason.INCOMPLETE)
        if _size(message, sequence) > _MOST_MESSAGES:
            return Taken(acks.batch_too_large(_MOST), AbandonReason.LARGE)
        return None

    def _too_much(self, batch: _Batch, size_bytes: int) -> Taken | None:
        if batch.size_bytes + size_bytes > limits.ATOMIC_BATCH_BYTES_MAX:
            return Taken(acks.batch_too_large(f"{limits.ATOMIC_BATCH_BYTES_MAX} bytes"), AbandonReason.LARGE)
        if not self._all.has_memory(self._sharer, size_bytes + _KEPT_BESIDE):
            return Taken(acks.too_many_batches(), AbandonReason.INCOMPLETE)
        return None

    def _drop(self, batch_id: bytes) -> None:
        batch = self._batches.pop(batch_id)
        self._all.dropped(self._sharer, batch.size_bytes + len(batch.messages) * _KEPT_BESIDE)

    def drop_all(self) -> None:
        """Forget all batches: the leadership has ended, or the stream allows none any more."""
        for batch_id in list(self._batches):
            self._drop(batch_id)

    def expire(self, now_us: int) -> list[bytes]:
        """Forget the batches without a message for too long; return their ids."""
        found = []
        for batch_id, batch in self._batches.items():
            if now_us < batch.last_us + _IDLE_US:
                break
            found.append(batch_id)
        for batch_id in found:
            self._drop(batch_id)
        return found

    @property
    def next_deadline_us(self) -> int | None:
        """Elapsed time at which the first batch expires; None if there is none."""
        first = next(iter(self._batches.values()), None)
        return None if first is None else first.last_us + _IDLE_US


_MOST_MESSAGES = limits.ATOMIC_BATCH_MESSAGES_MAX
_MOST = str(_MOST_MESSAGES)


def _size(message: BatchMessage, sequence: int) -> int:
    """Return the number of messages that a batch has at least, if that is a place in it."""
    return sequence - 1 if message.commit is Commit.BEFORE_THIS else sequence


def _has_level(required: bytes) -> bool:
    return bool(_LEVEL.fullmatch(required)) and int(required) <= limits.JETSTREAM_API_LEVEL


def _ready(batch_id: bytes, batch: _Batch, commit: BatchMessage) -> ReadyBatch:
    messages = batch.messages
    headers: list[bytes | None] = [one.headers for one in messages]
    if commit.commit is Commit.BEFORE_THIS:  # readers see where the batch ends
        headers[-1] = messages[-1].headers[:-2] + _COMMITTED
    group = MessageGroup.of([one.subject for one in messages], [one.value for one in messages], headers=headers)
    return ReadyBatch(batch_id, group, commit, batch.size_bytes)
