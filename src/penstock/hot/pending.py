"""Messages in hand of one consumer with acks: a table in order of offset (ADR 107).

Rules: what is new is entered behind all others, so the table stays in order; what leaves is a gap, until the table is
packed. Each change is noted in `changes`. An ack is applied only if it names a delivery: the message's sequence, the
consumer's, and a token made of both. Times are elapsed µs outside, and ms of the consumer's clock inside: it stands
while the consumer has no leader, and what is due is a time of this clock.

| state  | meaning                                                    | goes on when                                 |
|--------|------------------------------------------------------------|----------------------------------------------|
| HAND   | delivered                                                  | acked, or due: READY or ENDED                |
| WAITS  | not to be delivered before it is due                       | due: READY or ENDED                          |
| READY  | to be delivered again, or at last                          | delivered: HAND                              |
| PARKED | passed: an earlier message of its key is pending           | that one leaves: READY                       |
| ENDED  | delivered max_deliver times, and told                      | acked, or given up by the caller             |

Theory: a million entries are 38 bytes each. They are found by binary search; as long as nothing is missing, at once.
What is due is found by blocks of 256 entries, each with a lower bound of its due times: no heap, nothing to change when
an ack comes.

    offsets  40 41  ·  43 44 45  ·  ·      begin = 0, used = 8, count = 5; the gaps are acked
             ╰──── block 0 ────╯ ╰── …     due not before 12,000 ms; 1 is ready
"""

from __future__ import annotations

from array import array

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import load, memory
from penstock.hot.change_log import ChangeLog
from penstock.hot.siphash import SipHash

APPLIED = 0
LATE = 1
UNKNOWN = 2
FORGED = 3
"""Results of an ack. LATE: it names an earlier delivery, or a message given up, and changes nothing. UNKNOWN: its
message is not pending any more. FORGED: it names no delivery of this consumer."""

ACK = 0
NAK = 1
IN_PROGRESS = 2
TERM = 3
"""Kinds of acks."""
BY_BACKOFF = -1
"""Delay of a `NAK`: what the delivery would have waited for its ack."""
NEVER = 2**63 - 1
SAMPLES_MAX = 64
"""Sampled acks that wait to be told."""

FREE = 0
HAND = 1
WAITS = 2
READY = 3
PARKED = 4
ENDED = 5
STATES = ("free", "hand", "waits", "ready", "parked", "ended")

_APPLIED = 0  # the same for compiled code
_LATE = 1
_UNKNOWN = 2
_FORGED = 3
_ACK = 0
_NAK = 1
_IN_PROGRESS = 2
_TERM = 3
_NEVER = 2**63 - 1
_FREE = 0
_HAND = 1
_WAITS = 2
_READY = 3
_PARKED = 4
_ENDED = 5
_SAMPLES_MAX = SAMPLES_MAX

_CLOCK = 0  # operations of `change_log`
_DELIVER = 1
_KEYED = 2
_PARK = 3
_AGAIN = 5
_SETTLE = 6
_NAKKED = 7
_PROGRESS = 8
_GONE = 9
_ALL = 10

_BLOCK = 256
_BLOCK_BITS = 8
_BLOCK_MASK = 255
_ROOM_MIN = 16
_COUNT_MAX = 2**27
_DELAY_MS_MAX = 2**45
_STATE_BITS = 3
_STATE_MASK = 7
_ID_BYTES = 8
_TOKENS = 1_000
_ENDED_MAX = 65_536
_int = int

ENDED_MAX = _ENDED_MAX
"""Messages of one consumer that are kept though they were delivered max_deliver times; at it nothing new comes."""


class PendingTable:
    """The pending messages of a consumer.

    Readable: `next_offset`: all before it are delivered, parked or not wanted. `delivered`: consumer sequence of
    the last delivery. `count`: entries. `ack_pending`: those that were delivered. `parked`: those that were not
    yet; they count as undelivered. `ready`: those to be delivered by `Cursor.fill_again`. `redelivered`: those
    delivered before. `ended`: those delivered max_deliver times, which wait for a late ack, and do not count to the
    limit. `takes_settled`: what is acked, terminated or given up is noted for `take_settled`. `acked`, `late`,
    `unknown`, `forged`: acks by their result. `samples`: sampled acks (stream sequence, consumer sequence,
    deliveries, µs since the delivery), at most SAMPLES_MAX: the caller takes them out.
    """

    __slots__ = (
        "_block_dues", "_block_ready", "_blocks_room", "_hash", "_heirs", "_key_counts", "_packed", "_sampled",
        "_settled", "_settled_begin", "_settled_end", "_text", "_waits", "_waits_count", "ack_pending", "acked",
        "acks_all", "begin", "changes", "clock_ms", "consumer_id", "count", "delivered", "dues", "ended", "firsts",
        "forged", "generation", "hashes", "is_ordered", "is_touched", "lasts", "late", "marks", "max_deliver", "naks",
        "next_due_ms", "next_offset", "offsets", "order", "origin_us", "parked", "parked_max", "pending_max",
        "progressed", "ready", "redelivered", "redeliveries", "room", "sample_percent", "samples", "takes_settled",
        "tells_terminated", "terms", "unknown", "used",
    )  # fmt: skip

    def __init__(self, consumer_id: bytes, next_offset: _int, now_us: _int, clock_ms: _int = 0) -> None:
        """An empty table; `clock_ms`: of the consumer's clock. `configure` is called before anything is delivered."""
        if len(consumer_id) != _ID_BYTES:
            raise ValueError(f"an id of {len(consumer_id)} bytes")
        if not cython.compiled:
            self.offsets: list[int] = []
            self.lasts: list[int] = []
            self.firsts: list[int] = []
            self.dues: list[int] = []
            self.marks: list[int] = []
            self.hashes: list[int] = []
            self._block_dues: list[int] = []
            self._block_ready: list[int] = []
        self.consumer_id = consumer_id
        self.next_offset = next_offset
        self.delivered = 0
        self.generation = 0  # of consumer sequences: a reset begins another one
        self.count = self.ack_pending = self.parked = self.ready = self.redelivered = self.ended = 0
        self.takes_settled = False
        self._settled: list[tuple[int, int]] = []
        self._settled_begin = self._settled_end = 0  # the run that may grow
        self.acked = self.late = self.unknown = self.forged = 0
        self.naks = self.progressed = self.terms = 0  # of those that counted (`acked`)
        self.redeliveries = 0
        self.samples: list[tuple[int, int, int, int]] = []
        self._sampled = 0
        self.is_touched = False  # by the acks that are being applied
        self.changes = ChangeLog(next_offset)
        self.clock_ms = clock_ms  # of the last change that needed it
        self.origin_us = now_us - 1_000 * clock_ms
        self.begin = self.used = self.room = self._blocks_room = 0  # entries are in [begin, used)
        self.next_due_ms = _NEVER  # lower bound
        self._key_counts: dict[int, int] = {}  # entries by the hash of their key
        self._heirs: set[int] | None = None  # while a range leaves: keys of which the next entry becomes ready
        self._text = bytearray(16)
        self._hash = SipHash(consumer_id + bytes(8))
        self._waits = b""
        self._waits_count = 0
        self.order = 0
        self.is_ordered = self.acks_all = self.tells_terminated = False
        self.max_deliver = _NEVER
        self.pending_max = self.parked_max = 0
        self.sample_percent = 0

    def __dealloc__(self) -> None:
        if cython.compiled:
            memory.free_int64s(self.offsets)
            memory.free_int64s(self.lasts)
            memory.free_int64s(self.firsts)
            memory.free_int64s(self.dues)
            memory.free_int32s(self.marks)
            memory.free_int32s(self.hashes)
            memory.free_int64s(self._block_dues)
            memory.free_int32s(self._block_ready)

    def configure(
        self,
        waits_us: tuple[int, ...],
        *,
        max_deliver: _int,
        pending_max: _int,
        parked_max: _int,
        order: _int,
        acks_all: bool,
        sample_percent: _int,
        tells_terminated: bool,
    ) -> None:
        """Take a config: `waits_us` of the first, second, … and all further deliveries; `max_deliver` 0: no limit."""
        if self.order != order and self.count:
            raise ValueError("the order cannot be changed while messages are pending")
        self._waits = array("q", [(wait + 999) // 1_000 for wait in waits_us]).tobytes()
        self._waits_count = len(waits_us)
        self.max_deliver = max_deliver if max_deliver > 0 else _NEVER
        self.pending_max = pending_max
        self.parked_max = parked_max
        self.order = order
        self.is_ordered = order != 0
        if self.is_ordered and self.room:
            self._resize(self.room)  # for the hashes
        self.acks_all = acks_all
        self.sample_percent = sample_percent
        self.tells_terminated = tells_terminated
        for index in range(self.begin, self.used):
            if self.marks[index] & _STATE_MASK == _READY:
                self.set_state(index, _HAND)  # only to judge it again by the new limit
                self.make_ready(index)

    def keep_generation(self, generation: _int) -> None:
        """Take the generation of consumer sequences, on which the tokens depend."""
        self.generation = generation
        self._hash = SipHash(self.consumer_id + int(generation).to_bytes(8, "little"))

    def go_on(self, now_us: _int) -> None:
        """The clock, which stood since the last change, goes on from now."""
        self.origin_us = now_us - 1_000 * self.clock_ms

    # Looking.

    def has_no_room(self) -> bool:
        """True if no new message may be delivered: as many are in hand, or parked, as may be."""
        if self.ack_pending - self.ended >= self.pending_max or self.ended >= _ENDED_MAX:
            return True
        return self.is_ordered and self.parked >= self.parked_max

    def next_due_us(self) -> _int:
        """Return when `expire` may find something: a lower bound; NEVER: nothing waits for a time."""
        return _NEVER if self.next_due_ms == _NEVER else self.origin_us + 1_000 * self.next_due_ms

    def floor_offset(self) -> _int:
        """Return the first pending offset, or `next_offset`; as a stream sequence it is that of the ack floor."""
        return self.offsets[self.begin] if self.count else self.next_offset

    def floor_sequence(self) -> _int:
        """Return the consumer sequence of the ack floor: all deliveries up to it are of messages that are done."""
        if self.ack_pending == 0:
            return self.delivered
        if not self.is_ordered:
            return self.firsts[self.begin] - 1
        least = self.delivered + 1
        for index in range(self.begin, self.used):
            if self.marks[index] & _STATE_MASK != _FREE and self.marks[index] >> _STATE_BITS:
                least = min(least, self.firsts[index])
        return least - 1

    def find(self, offset: _int) -> _int:
        """Return the index of an entry, or -1."""
        index = self.lower_bound(offset)
        if index < self.used and self.offsets[index] == offset and self.marks[index] & _STATE_MASK != _FREE:
            return index
        return -1

    def lower_bound(self, offset: _int) -> _int:
        """Return the first index, of an entry or a gap, at or behind an offset; `used`: there is none."""
        low = self.begin
        high = self.used
        if low < high:
            step = offset - self.offsets[low]
            if 0 <= step < high - low and self.offsets[low + step] == offset:
                return low + step
        while low < high:
            middle = (low + high) >> 1
            if self.offsets[middle] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def deliveries_at(self, index: _int) -> _int:
        """Return how often an entry was delivered."""
        return self.marks[index] >> _STATE_BITS

    def next_ready(self, index: _int) -> _int:
        """Return the first index from `index` on of an entry that is ready, or -1."""
        if self.ready == 0:
            return -1
        index = max(index, self.begin)
        while index < self.used:
            block = index >> _BLOCK_BITS
            if self._block_ready[block] == 0:
                index = (block + 1) * _BLOCK
                continue
            end = min(self.used, (block + 1) * _BLOCK)
            while index < end:
                if self.marks[index] & _STATE_MASK == _READY:
                    return index
                index += 1
        return -1

    def ready_offsets(self, begin: _int, limit: _int) -> list[int]:
        """Return up to `limit` offsets from `begin` on that `Cursor.fill_again` is to deliver."""
        found: list[int] = []
        index = self.next_ready(self.lower_bound(begin))
        while index >= 0 and len(found) < limit:
            found.append(self.offsets[index])
            index = self.next_ready(index + 1)
        return found

    def offsets_in(self, state: _int, limit: _int) -> list[int]:
        """Return up to `limit` offsets in a state; it looks at all entries."""
        found: list[int] = []
        for index in range(self.begin, self.used):
            if self.marks[index] & _STATE_MASK == state and len(found) < limit:
                found.append(self.offsets[index])
        return found

    def entry(self, offset: _int) -> tuple[str, int, int, int, int] | None:
        """Return state, deliveries, last and first consumer sequence, and due time in µs (NEVER) of an entry."""
        index = self.find(offset)
        if index < 0:
            return None
        due = self.dues[index]
        due_us = _NEVER if due == _NEVER else self.origin_us + 1_000 * due
        mark = self.marks[index]
        state = STATES[mark & _STATE_MASK]
        return state, mark >> _STATE_BITS, self.lasts[index], self.firsts[index], due_us

    def entries(self, begin: _int, limit: _int) -> list[tuple[int, str, int, int, int, int]]:
        """Return up to `limit` entries from an offset on, as `entry` does, with their offsets."""
        found: list[tuple[int, str, int, int, int, int]] = []
        index = self.lower_bound(begin)
        while index < self.used and len(found) < limit:
            one = self.entry(self.offsets[index])
            if one is not None:
                found.append((self.offsets[index], *one))
            index += 1
        return found

    def holds(self, offset: _int) -> bool:
        """True if a message is pending."""
        return self.find(offset) >= 0

    def offsets_between(self, begin: _int, end: _int) -> list[int]:
        """Return the pending offsets from `begin` to `end`, in order."""
        found: list[int] = []
        index = self.lower_bound(begin)
        while index < self.used and self.offsets[index] < end:
            if self.marks[index] & _STATE_MASK != _FREE:
                found.append(self.offsets[index])
            index += 1
        return found

    def take_settled(self) -> list[tuple[int, int]]:
        """Return the ranges that were acked or terminated since the last call."""
        self._note_settled(-1)
        found = self._settled
        self._settled = []
        return found

    def _note_settled(self, offset: _int) -> None:
        """Note a message that was acked or terminated; -1: only end the run."""
        if offset == self._settled_end and self._settled_begin < self._settled_end:
            self._settled_end += 1
            return
        if self._settled_begin < self._settled_end:
            self._settled.append((self._settled_begin, self._settled_end))
        self._settled_begin = offset
        self._settled_end = offset + 1 if offset >= 0 else offset

    def size_bytes(self) -> int:
        """Memory of the entries, in bytes."""
        return self.room * (44 if self.is_ordered else 36) + self._blocks_room * 12

    # Time.

    def now_ms(self, now_us: _int) -> _int:
        """Return the consumer's clock; the ms that has begun."""
        return max(0, now_us - self.origin_us) // 1_000

    def tick(self, now_us: _int) -> None:
        """Note the time: the next change that needs one comes at the end of this ms."""
        ms = max(0, now_us - self.origin_us + 999) // 1_000
        if ms > self.clock_ms:
            self.changes.clock(ms - self.clock_ms)
            self.clock_ms = ms

    def wait_ms(self, deliveries: _int) -> _int:
        """Return for how long a delivery waits for its ack."""
        waits = load.int64s(self._waits, 0, self._waits_count)
        return waits[min(max(deliveries, 1), self._waits_count) - 1]

    # Delivering.

    def is_busy(self, key_hash: _int) -> bool:
        """True if a message of this key is pending. 0: no key."""
        return key_hash != 0 and key_hash in self._key_counts

    def deliver(self, offset: _int, key_hash: _int, now_us: _int) -> None:
        """Enter the first delivery of a message, behind all others."""
        self.tick(now_us)
        self.enter(offset, key_hash)
        self.changes.note(_KEYED if self.is_ordered else _DELIVER, offset, key_hash)

    def enter(self, offset: _int, key_hash: _int) -> None:
        """Enter the first delivery of a message at the clock's time."""
        self.delivered += 1
        due = self.clock_ms + self.wait_ms(1)
        self.append(offset, self.delivered, self.delivered, due, 1, _HAND, key_hash)
        self.next_offset = offset + 1

    def park(self, offset: _int, key_hash: _int) -> None:
        """Enter a message that waits for an earlier one of its key."""
        self.append(offset, 0, 0, _NEVER, 0, _PARKED, key_hash)
        self.next_offset = offset + 1
        self.changes.note(_PARK, offset, key_hash)

    def deliver_again(self, index: _int, now_us: _int) -> None:
        """Enter another delivery of an entry, or the first one of a message that was parked."""
        self.tick(now_us)
        if self.marks[index] >> _STATE_BITS:
            self.redeliveries += 1
        self.redeliver(index)
        self.changes.note(_AGAIN, self.offsets[index], 0)

    def redeliver(self, index: _int) -> None:
        """Count another delivery of an entry, at the clock's time."""
        self.delivered += 1
        deliveries = self.marks[index] >> _STATE_BITS
        if deliveries == 0:
            self.firsts[index] = self.delivered
            self.parked -= 1
            self.ack_pending += 1
        elif deliveries == 1:
            self.redelivered += 1
        self.lasts[index] = self.delivered
        if deliveries < _COUNT_MAX:
            deliveries += 1
        self.set_state(index, _HAND)
        self.marks[index] = deliveries << _STATE_BITS | _HAND
        self.set_due(index, self.clock_ms + self.wait_ms(deliveries))

    def pass_to(self, offset: _int) -> None:
        """Go on behind messages that are not wanted."""
        self.next_offset = max(self.next_offset, offset)

    def token(self, sequence: _int, consumer_sequence: _int) -> _int:
        """Return the token of a delivery, 0 to 999: its message's stream sequence, and its consumer sequence."""
        target = self._text
        memory.put_int64(target, 0, sequence)
        memory.put_int64(target, 8, consumer_sequence)
        self._hash.hash(target, 0, 16)
        return self._hash.low % _TOKENS

    # Acks, and what else ends a delivery.

    def settle(self, kind: _int, offset: _int, sequence: _int, token: _int, delay_us: _int, now_us: _int) -> int:
        """Apply one ack: ACK, NAK, IN_PROGRESS or TERM; return APPLIED, LATE, UNKNOWN or FORGED.

        `sequence` is the consumer's, `delay_us` that of a NAK, or BY_BACKOFF.
        """
        found = self._judge(kind, offset, sequence, token)
        if found == _APPLIED:
            self.acked += 1
            self._apply(kind, offset, delay_us, now_us)
        elif found == _LATE:
            self.late += 1
        elif found == _UNKNOWN:
            self.unknown += 1
        else:
            self.forged += 1
        return found

    def check(self, kind: _int, offset: _int, sequence: _int, token: _int) -> int:
        """Return what `settle` would return; nothing changes."""
        return self._judge(kind, offset, sequence, token)

    def _judge(self, kind: _int, offset: _int, sequence: _int, token: _int) -> _int:
        if not 0 < sequence <= self.delivered or offset < 0 or offset >= self.next_offset:
            return _FORGED
        if token != self.token(offset + 1, sequence):
            return _FORGED
        if self.acks_all and kind in (_ACK, _TERM):
            return _APPLIED if self.count and self.offsets[self.begin] <= offset else _UNKNOWN
        index = self.find(offset)
        if index < 0:
            return _UNKNOWN
        if sequence > self.lasts[index] or sequence < self.firsts[index] or self.lasts[index] == 0:
            return _FORGED
        is_done = kind in (_ACK, _TERM)
        if sequence != self.lasts[index] and (self.is_ordered or not is_done):
            return _LATE
        return _LATE if self.marks[index] & _STATE_MASK == _ENDED and not is_done else _APPLIED

    def _apply(self, kind: _int, offset: _int, delay_us: _int, now_us: _int) -> None:
        if kind == _IN_PROGRESS:
            self.progressed += 1
            self.tick(now_us)
            self.progress(self.find(offset))
            self.changes.note(_PROGRESS, offset, 0)
        elif kind == _NAK:
            self.naks += 1
            index = self.find(offset)
            delay_ms = self.wait_ms(self.marks[index] >> _STATE_BITS) if delay_us < 0 else (delay_us + 999) // 1_000
            delay_ms = min(delay_ms, _DELAY_MS_MAX)
            if delay_ms:
                self.tick(now_us)
            self.nak(index, delay_ms)
            self.changes.note(_NAKKED, offset, delay_ms)
        else:
            if kind == _TERM:
                self.terms += 1
            if kind == _ACK and self.sample_percent:
                self._sample(offset, now_us)
            if self.acks_all:
                self.release_all(offset)
                self.changes.note(_ALL, offset, 0)
            else:
                if self.takes_settled:
                    self._note_settled(offset)
                self.release(self.find(offset))
                self.changes.note(_SETTLE, offset, 0)

    def _sample(self, offset: _int, now_us: _int) -> None:
        """Count an ack, and keep what is told of it if it is one of those to be told."""
        self._sampled += self.sample_percent
        if self._sampled < 100:
            return
        self._sampled -= 100
        index = self.find(offset)
        if len(self.samples) >= _SAMPLES_MAX or index < 0:
            return
        deliveries = self.marks[index] >> _STATE_BITS
        age_ms = 0
        if self.marks[index] & _STATE_MASK == _HAND:
            age_ms = max(0, self.wait_ms(deliveries) - (self.dues[index] - self.now_ms(now_us)))
        self.samples.append((offset + 1, self.lasts[index], deliveries, 1_000 * age_ms))

    def progress(self, index: _int) -> None:
        """The wait for the ack of the last delivery begins anew, at the clock's time."""
        self.set_state(index, _HAND)
        self.set_due(index, self.clock_ms + self.wait_ms(self.marks[index] >> _STATE_BITS))

    def nak(self, index: _int, delay_ms: _int) -> None:
        """Deliver an entry again, after a delay from the clock's time on."""
        if delay_ms:
            self.set_state(index, _WAITS)
            self.set_due(index, self.clock_ms + delay_ms)
        else:
            self.make_ready(index)

    def make_ready(self, index: _int) -> None:
        """Deliver an entry again now; if it was delivered as often as may be, `expire` will say so."""
        if self.marks[index] >> _STATE_BITS >= self.max_deliver:
            self.set_state(index, _WAITS)
            self.set_due(index, 0)
        else:
            self.set_state(index, _READY)
            self.dues[index] = _NEVER

    def end(self, offset: _int) -> bool:
        """A message is terminated, and stays pending until it is given up; False: it is not pending.

        It is not noted: the next leader delivers it again if it may.
        """
        index = self.find(offset)
        if index < 0:
            return False
        self.set_state(index, _ENDED)
        self.dues[index] = _NEVER
        self.acked += 1
        self.terms += 1
        return True

    def has_ended(self, offset: _int) -> bool:
        """True if a message is pending, and is not delivered any more."""
        index = self.find(offset)
        return index >= 0 and self.marks[index] & _STATE_MASK == _ENDED

    def give_up(self, offset: _int) -> bool:
        """Take a message out for good; False: it is not pending."""
        index = self.find(offset)
        if index < 0:
            return False
        self.release(index)
        self.changes.note(_GONE, offset, 0)
        if self.takes_settled:
            self._note_settled(offset)
        return True

    def remove_range(self, begin: _int, end: _int) -> _int:
        """Take out the messages of a range of offsets; return how many there were."""
        removed = 0
        index = self.lower_bound(begin)
        last = begin
        self._heirs = set() if self.is_ordered else None
        while index < self.used and self.offsets[index] < end:
            if self.marks[index] & _STATE_MASK != _FREE:
                if removed == 0:
                    begin = self.offsets[index]
                last = self.offsets[index]
                removed += 1
                self.drop(index)
            index += 1
        self._ready_heirs(index)
        if removed:
            self.tidy()
            self.changes.note_range(_GONE, begin, last + 1)
        return removed

    def cut(self, end: _int) -> bool:
        """Go back to an offset: what is at or behind it has never been. Return if anything changed; it is not noted."""
        is_changed = self.next_offset > end
        is_on = self.changes.is_on
        self.changes.is_on = False
        if self.remove_range(end, _NEVER):
            is_changed = True
        self.changes.is_on = is_on
        self.used = max(self.begin, self.lower_bound(end))
        self.next_offset = min(self.next_offset, end)
        return is_changed

    def reset(self, next_offset: _int) -> None:
        """Begin anew: nothing is pending, sequences begin at 1, and acks of earlier deliveries are forged."""
        self.clear()
        self.next_offset = next_offset
        self.delivered = 0
        self.keep_generation(self.generation + 1)
        self.changes.reset(next_offset)

    def clear(self) -> None:
        """Forget all entries."""
        self.begin = self.used = 0
        self.count = self.ack_pending = self.parked = self.ready = self.redelivered = self.ended = 0
        self._key_counts = {}
        self.next_due_ms = _NEVER

    def expire(self, now_us: _int) -> list[int]:
        """Make ready what is due; return the offsets of what was delivered max_deliver times, and is ENDED now."""
        ended: list[int] = []
        now_ms = self.now_ms(now_us)
        if self.next_due_ms > now_ms:
            return ended
        least = _NEVER
        for block in range(self.begin >> _BLOCK_BITS, (self.used + _BLOCK - 1) >> _BLOCK_BITS):
            if self._block_dues[block] <= now_ms:
                self._block_dues[block] = self._expire_block(block, now_ms, ended)
            least = min(least, self._block_dues[block])
        self.next_due_ms = least
        return ended

    def _expire_block(self, block: _int, now_ms: _int, ended: list[int]) -> _int:
        """Expire the entries of a block; return the least due time of the others."""
        least = _NEVER
        for index in range(max(self.begin, block * _BLOCK), min(self.used, (block + 1) * _BLOCK)):
            state = self.marks[index] & _STATE_MASK
            if state not in (_HAND, _WAITS):
                continue
            due = self.dues[index]
            if due > now_ms:
                least = min(least, due)
                continue
            self.dues[index] = _NEVER
            if self.marks[index] >> _STATE_BITS >= self.max_deliver:
                self.set_state(index, _ENDED)
                ended.append(self.offsets[index])
            else:
                self.set_state(index, _READY)
        return least

    # Entries.

    def append(
        self, offset: _int, last: _int, first: _int, due: _int, deliveries: _int, state: _int, key_hash: _int
    ) -> None:
        """Add an entry behind all others."""
        if self.used > self.begin and offset <= self.offsets[self.used - 1]:
            raise ValueError(f"offset {offset} is not behind {self.offsets[self.used - 1]}")
        if self.used == self.room:
            self._make_room()
        index = self.used
        if index & _BLOCK_MASK == 0:
            self._block_dues[index >> _BLOCK_BITS] = _NEVER
            self._block_ready[index >> _BLOCK_BITS] = 0
        self.used += 1
        self.offsets[index] = offset
        self.lasts[index] = last
        self.firsts[index] = first
        self.marks[index] = deliveries << _STATE_BITS
        if self.is_ordered:
            self.hashes[index] = key_hash
            if key_hash:
                before = self._key_counts.get(key_hash)
                self._key_counts[key_hash] = 1 if before is None else before + 1
        self.count += 1
        if deliveries:
            self.ack_pending += 1
            self.redelivered += deliveries > 1
        else:
            self.parked += 1
        self.set_state(index, state)
        self.set_due(index, due)

    def set_state(self, index: _int, state: _int) -> None:
        """Change the state of an entry, and what is counted by it."""
        mark = self.marks[index]
        step = (state == _READY) - (mark & _STATE_MASK == _READY)
        if step:
            self.ready += step
            self._block_ready[index >> _BLOCK_BITS] += step
        self.ended += (state == _ENDED) - (mark & _STATE_MASK == _ENDED)
        self.marks[index] = mark & ~_STATE_MASK | state

    def set_due(self, index: _int, due: _int) -> None:
        """Change the due time of an entry."""
        self.dues[index] = due
        block = index >> _BLOCK_BITS
        self._block_dues[block] = min(self._block_dues[block], due)
        self.next_due_ms = min(self.next_due_ms, due)

    def release(self, index: _int) -> None:
        """An entry leaves."""
        self.drop(index)
        self.tidy()

    def release_all(self, offset: _int) -> None:
        """All entries up to an offset leave."""
        end = self.lower_bound(offset + 1)
        for index in range(self.begin, end):
            if self.marks[index] & _STATE_MASK != _FREE:
                if self.takes_settled:
                    self._note_settled(self.offsets[index])
                self.drop(index)
        self.tidy()

    def drop(self, index: _int) -> None:
        """An entry becomes a gap; `tidy` must follow. The next one of its key is ready."""
        deliveries = self.marks[index] >> _STATE_BITS
        is_parked = self.marks[index] & _STATE_MASK == _PARKED
        self.set_state(index, _FREE)
        self.count -= 1
        if deliveries == 0:
            self.parked -= 1
        else:
            self.ack_pending -= 1
            self.redelivered -= deliveries > 1
        if self.is_ordered and self.hashes[index]:
            self._leave_key(index, is_parked)

    def _leave_key(self, index: _int, is_parked: bool) -> None:
        """The entry at `index` has left: if it was the first one of its key, the next one is ready."""
        key_hash = self.hashes[index]
        left = self._key_counts[key_hash] - 1
        if left == 0:
            del self._key_counts[key_hash]
            if self._heirs is not None:
                self._heirs.discard(key_hash)
            return
        self._key_counts[key_hash] = left
        if is_parked:
            return
        if self._heirs is not None:
            self._heirs.add(key_hash)
            return
        for other in range(index + 1, self.used):
            if self.hashes[other] == key_hash and self.marks[other] & _STATE_MASK != _FREE:
                self.set_state(other, _READY)
                return

    def _ready_heirs(self, index: _int) -> None:
        """A range before `index` has left: the next entry of each key of `_heirs` is ready. One look at each entry."""
        heirs = self._heirs
        self._heirs = None
        while heirs and index < self.used:
            if self.hashes[index] in heirs and self.marks[index] & _STATE_MASK != _FREE:
                heirs.discard(self.hashes[index])
                self.set_state(index, _READY)
            index += 1

    def tidy(self) -> None:
        """Step over the gaps at the beginning; give back memory that is no longer needed."""
        if self.count == 0:
            self.begin = self.used = 0
            self.next_due_ms = _NEVER
        while self.begin < self.used and self.marks[self.begin] & _STATE_MASK == _FREE:
            self.begin += 1
        if self.room > 4_096 and self.count * 8 < self.room:
            self._pack()
            self._resize(max(_ROOM_MIN, 2 * self.count))

    def _make_room(self) -> None:
        """Pack the table if a quarter are gaps; else take more memory."""
        if (self.used - self.count) * 4 >= self.room > 0:
            self._pack()
        elif self.room < 4_096:
            self._resize(max(_ROOM_MIN, 2 * self.room))
        else:
            self._resize(self.room + self.room // 16)

    def _resize(self, room: _int) -> None:
        self.room = room
        self.offsets = memory.more_int64s(self.offsets, room)
        self.lasts = memory.more_int64s(self.lasts, room)
        self.firsts = memory.more_int64s(self.firsts, room)
        self.dues = memory.more_int64s(self.dues, room)
        self.marks = memory.more_int32s(self.marks, room)
        if self.is_ordered:
            self.hashes = memory.more_int32s(self.hashes, room)
        self._blocks_room = (room >> _BLOCK_BITS) + 1
        self._block_dues = memory.more_int64s(self._block_dues, self._blocks_room)
        self._block_ready = memory.more_int32s(self._block_ready, self._blocks_room)

    def _pack(self) -> None:
        """Close the gaps, and build the blocks anew."""
        to = 0
        for index in range(self.begin, self.used):
            mark = self.marks[index]
            if mark & _STATE_MASK == _FREE:
                continue
            self.offsets[to] = self.offsets[index]
            self.lasts[to] = self.lasts[index]
            self.firsts[to] = self.firsts[index]
            self.dues[to] = self.dues[index]
            self.marks[to] = mark
            if self.is_ordered:
                self.hashes[to] = self.hashes[index]
            block = to >> _BLOCK_BITS
            if to & _BLOCK_MASK == 0:
                self._block_dues[block] = _NEVER
                self._block_ready[block] = 0
            self._block_dues[block] = min(self._block_dues[block], self.dues[to])
            self._block_ready[block] += mark & _STATE_MASK == _READY
            to += 1
        self.begin = 0
        self.used = to
