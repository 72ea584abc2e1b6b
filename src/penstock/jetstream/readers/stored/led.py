"""One stored consumer at the broker that leads its stream: its state, and what waits until its rows are committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penstock.base import limits
from penstock.consumers.config import WAIT_US_MIN, AckConfig
from penstock.consumers.letters import LetterQueue
from penstock.consumers.state import ConsumerState
from penstock.jetstream.readers.config.reader_config import ReaderConfig, stored_config

if TYPE_CHECKING:
    from penstock.jetstream.readers.chunks import Chunk
    from penstock.jetstream.readers.stored.priorities import Priorities
    from penstock.jetstream.readers.stored.writes import ConsumerWrites

HELD_BYTES_MAX = 1 * limits.MIB
"""Frames of one consumer that wait until their deliveries are committed; beyond these it delivers and tells nothing."""
ANSWERS_BYTES_MAX = 256 * limits.KIB
"""Reply subjects of acks to one consumer that wait until these are committed: acks beyond are applied, not answered."""
UNCERTAIN_US = 100_000
"""Until a stored consumer is looked at again of which another broker may be the leader."""

SINCE_END = 2**62
"""`since` of a consumer whose filters are being changed: which of the messages that it has passed were settled is not
known."""


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """Name and config of a consumer, as its row has them beside its state."""

    name: str
    created_us: int  # wall time
    config: dict[str, Any]  # as it is told
    filters: tuple[str, ...] = ()
    since: int = 0  # it has passed the messages before it by other filters, or never

    def reader_config(self) -> ReaderConfig:
        return stored_config(self.config, self.filters)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Told).decode


def told_bytes(name: str, created_us: int, config: ReaderConfig, since: int = 0) -> bytes:
    """Return what is stored of a consumer's name and config."""
    return _encode(Told(name, created_us, config.told_of(name), config.filters, since))


def parsed_told(told: bytes) -> Told:
    """Return what was stored. msgspec.DecodeError."""
    return _decode(told)


def ack_config(config: ReaderConfig) -> AckConfig:
    """Return what the core needs of a config."""
    return AckConfig(
        ack_wait_us=max(WAIT_US_MIN, config.ack_wait_us or 30_000_000),
        backoff_us=tuple(max(WAIT_US_MIN, wait) for wait in config.backoff_us),
        max_deliver=config.max_deliver,
        max_ack_pending=config.max_ack_pending,
        acks_all=config.acks == "all",
        order=config.order,
        sample_percent=config.sample_percent,
        tells_terminated=True,  # for the advisory
        has_priority=config.priority != "none",
    )


class Held(NamedTuple):
    """Frames to clients, and subjects for the answers to acks, that are sent once rows are committed."""

    frames: bytes | bytearray
    replies: Sequence[bytes]


class LedConsumer:
    """A stored consumer under one leadership of this broker."""

    __slots__ = (
        "_replies_bytes", "again", "asked_end", "checked_under", "frames", "is_deleted", "is_told_lost", "letters",
        "priorities", "replies", "since", "state", "under_way", "writes",
    )  # fmt: skip

    def __init__(self, state: ConsumerState, writes: ConsumerWrites, priorities: Priorities | None = None) -> None:
        self.state = state
        self.writes = writes
        self.frames: bytes | bytearray = b""  # wait until the next rows are committed: see `hold`
        self.replies: Sequence[bytes] = ()  # of acks whose senders wait for the next rows: see `answer`
        self._replies_bytes = 0
        self.since = 0  # of a work queue: which messages before it were settled is not known
        self.under_way = 0  # batches with rows of it that are being committed
        self.asked_end = 0  # end of the stream when a client asked last: what it is told of counts all up to there
        self.is_deleted = False
        self.is_told_lost = False  # rows of its config were refused: all is to be written
        self.priorities = priorities
        self.letters: LetterQueue | None = None  # dead letters on their way
        self.again: Chunk | None = None  # rows that were read to be delivered again
        self.checked_under: object = None  # for which state of the log messages that are gone were looked for

    @property
    def is_certain(self) -> bool:
        """True while no other broker may lead: only then it delivers, and gives messages up."""
        return self.writes.log.is_certain

    @property
    def is_holding(self) -> bool:
        """True if frames wait, behind which all others have to wait."""
        return bool(self.frames) or (self.under_way > 0 and self.state.config.commits_first)

    @property
    def is_held_back(self) -> bool:
        """True if too many frames wait."""
        return len(self.frames) >= HELD_BYTES_MAX

    def hold(self, frames: bytes | bytearray) -> None:
        """Have frames wait until the next rows are committed."""
        if not isinstance(self.frames, bytearray):
            self.frames = bytearray()  # made when needed: most consumers are idle
        self.frames += frames

    def answer(self, reply: bytes) -> None:
        """Answer an ack once the next rows are committed; its sender tries again if too many wait."""
        if self._replies_bytes + len(reply) <= ANSWERS_BYTES_MAX:
            self._replies_bytes += len(reply)
            if not isinstance(self.replies, list):
                self.replies = []
            self.replies.append(reply)

    def take_held(self) -> Held:
        """Take what waits for the next rows."""
        held = Held(self.frames, self.replies)
        self.frames, self.replies = b"", ()
        self._replies_bytes = 0
        return held

    def hold_again(self, held: Held) -> None:
        """The rows were not stored: these wait for the next ones."""
        self.frames = bytearray().join((held.frames, self.frames))
        self.replies = [*held.replies, *self.replies]
        self._replies_bytes += sum(map(len, held.replies))
