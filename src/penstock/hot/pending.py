"""Messages in hand of one consumer with acks: a table in order of offset (ADR 107). SKELETON."""

from __future__ import annotations

from penstock.hot.message_group import MessageGroup

NEVER = 2**63 - 1

APPLIED = 0
LATE = 1  # it names an earlier delivery of the message, and changes nothing
UNKNOWN = 2  # its message is not pending: it was acked, or is gone
FORGED = 3  # it names no delivery of this consumer
"""Results of an ack."""

ACK = 0
NAK = 1
IN_PROGRESS = 2
TERM = 3
"""Kinds of acks."""
BY_BACKOFF = -1  # a delay


class PendingTable:
    """The messages in hand. Readable: counts and positions, in offsets (a stream sequence is the offset + 1)."""

    def __init__(self, consumer_id: bytes, next_offset: int, now_us: int) -> None:
        self.next_offset = next_offset  # all before it are delivered, parked, or not wanted
        self.delivered = 0  # consumer sequence of the last delivery
        self.count = 0  # entries: in hand, waiting, ready or parked
        self.ack_pending = 0  # those that were delivered: num_ack_pending
        self.parked = 0  # those that were never delivered: they count as num_pending
        self.ready = 0  # to be delivered again, or at last
        self.redelivered = 0  # delivered more than once: num_redelivered
        self.acked = 0  # counters of acks since it was made: applied, and those that changed nothing
        self.late = 0
        self.unknown = 0
        self.forged = 0

    @property
    def is_full(self) -> bool:
        """True if no new message may be delivered (max_ack_pending, or too many are parked)."""
        raise NotImplementedError

    def floor_offset(self) -> int:
        """Return the first pending offset, or the position: all before are done. As a stream sequence: the ack floor."""
        raise NotImplementedError

    def floor_sequence(self) -> int:
        """Return the consumer sequence of the ack floor."""
        raise NotImplementedError

    def settle(self, kind: int, offset: int, sequence: int, token: int, delay_us: int, now_us: int) -> int:
        """Apply one ack: `kind` ACK, NAK, IN_PROGRESS or TERM; return APPLIED, LATE, UNKNOWN or FORGED."""
        raise NotImplementedError

    def check(self, offset: int, sequence: int, token: int) -> int:
        """Return what `settle` with TERM would, and change nothing."""
        raise NotImplementedError

    def ready_offsets(self, begin: int, limit: int) -> list[int]:
        """Return up to `limit` offsets from `begin` on that are ready to be delivered again."""
        raise NotImplementedError

    def entry(self, offset: int) -> tuple[str, int, int, int, int] | None:
        """Return state, deliveries, last and first consumer sequence, and due time of an entry."""
        raise NotImplementedError


def ack_parts(subject: bytes) -> tuple[bytes, int, int, int, int] | None:
    """Parse `$JS.ACK.<stream>.<consumer>.<n>.<sseq>.<cseq>.<ns>.<pending>`; None: it is none.

    Return b"<stream>.<consumer>", deliveries, offset, consumer sequence and token.
    """
    raise NotImplementedError


def apply_acks(
    group: MessageGroup, begin: int, end: int, tables: dict[bytes, PendingTable], now_us: int, others: list[int]
) -> list[PendingTable]:
    """Apply the plain acks of rows [begin, end); return the tables that changed, each once.

    `tables`: by b"<stream>.<consumer>". The numbers of rows that ask for more are added to `others`, in order: acks with
    a reply subject, `-NAK` with a delay, `+NXT`, `+TERM` where the table tells terminated ones, what is no ack, and
    those of a consumer that is not in `tables`.
    """
    raise NotImplementedError
