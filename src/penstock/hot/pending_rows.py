"""A table of pending messages as bytes, and changes applied to it.

Rules: every number is checked; ValueError says at which byte one is wrong. What was read is a table that could have
come about: in order, within its position and its count of deliveries, and each key in one hand.

A snapshot's entries are runs of neighbours that were delivered one after the other, and are alike:

    varint: offsets between the run before and this one
    tag: state (3 bits), then a bit each: ALONE, ONCE, FOLLOWS, SAME_DUE
    not ALONE     varint: length - 2
    not ONCE      varint: deliveries; if there was one, varint: last consumer sequence - first one
    not FOLLOWS   zigzag: last consumer sequence of the first entry, less that which follows the run before and the gap
    not SAME_DUE  zigzag: ms of the due time after that of the run before; the first one's, after the clock
    ordered       4 bytes each: hash of the key

FOLLOWS stands also where nothing was delivered, and SAME_DUE where nothing is due. See `change_log` for a change.
"""

from __future__ import annotations

from penstock.hot import change_log, load, memory
from penstock.hot.pending import PendingTable

_NEVER = 2**63 - 1
_MOST = 2**61
_TIME_MAX = 2**50  # ms
_FREE = 0
_HAND = 1
_WAITS = 2
_READY = 3
_PARKED = 4
_ENDED = 5
_STATE_BITS = 3
_STATE_MASK = 7
_ALONE = 8
_ONCE = 16
_FOLLOWS = 32
_SAME_DUE = 64
_COUNT_MAX = 2**27
_HASH_MASK = 0x7FFF_FFFF

_CLOCK = 0
_DELIVER = 1
_KEYED = 2
_PARK = 3
_PASS = 4
_AGAIN = 5
_SETTLE = 6
_NAK = 7
_PROGRESS = 8
_GONE = 9
_ALL = 10
_RESET = 11
_int = int


class Numbers:
    """Reads numbers of `data` from a position on."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: _int) -> None:
        if not 0 <= at <= len(data):
            raise ValueError(f"byte {at} of {len(data)}")
        self.data = data
        self.at = at
        self.end = len(data)

    def byte(self) -> _int:
        """Read one byte."""
        if self.at >= self.end:
            raise ValueError(f"byte {self.at}: the end, where a number was expected")
        text = self.data
        self.at += 1
        return text[self.at - 1]

    def varint(self, most: _int) -> _int:
        """Read a varint of at most 9 bytes, in its shortest form."""
        number = shift = 0
        byte = self.byte()
        while byte & 0x80 and shift < 56:
            number |= (byte & 0x7F) << shift
            shift += 7
            byte = self.byte()
        number |= (byte & 0x7F) << shift
        if byte & 0x80 or number > most or (shift and not byte):
            raise ValueError(f"byte {self.at - 1}: no number up to {most} in its shortest form")
        return number

    def zigzag(self, most: _int) -> _int:
        """Read a number from -`most` to `most`, which is at most 2^61."""
        number = self.varint(2 * most)
        return -(number >> 1) - 1 if number & 1 else number >> 1

    def key_hash(self) -> _int:
        """Read the hash of a key."""
        if self.end - self.at < 4:
            raise ValueError(f"byte {self.at}: the end, where the hash of a key was expected")
        text = self.data
        self.at += 4
        return load.uint32(text, self.at - 4) & _HASH_MASK

    def wrong(self, words: str) -> ValueError:
        """Return the error for what was just read."""
        return ValueError(f"byte {self.at}: {words}")


def encode_entries(table: PendingTable) -> bytes:
    """Return the entries of a table."""
    out = bytearray()
    end = 0
    last = 0  # consumer sequence that follows
    due = table.clock_ms
    index = table.begin
    while index < table.used:
        mark = table.marks[index]
        if mark & _STATE_MASK == _FREE:
            index += 1
            continue
        stop = _run_end(table, index)
        gap = table.offsets[index] - end
        deliveries = mark >> _STATE_BITS
        tag = mark & _STATE_MASK
        if stop == index + 1:
            tag |= _ALONE
        if deliveries == 1 and table.lasts[index] == table.firsts[index]:
            tag |= _ONCE
        if deliveries == 0 or table.lasts[index] == last + gap:
            tag |= _FOLLOWS
        has_due = table.dues[index] != _NEVER
        if not has_due or table.dues[index] == due:
            tag |= _SAME_DUE
        change_log.put_varint(out, gap)
        change_log.put_byte(out, tag)
        if not tag & _ALONE:
            change_log.put_varint(out, stop - index - 2)
        if not tag & _ONCE:
            change_log.put_varint(out, deliveries)
            if deliveries:
                change_log.put_varint(out, table.lasts[index] - table.firsts[index])
        if not tag & _FOLLOWS:
            change_log.put_zigzag(out, table.lasts[index] - last - gap)
        if not tag & _SAME_DUE:
            change_log.put_zigzag(out, table.dues[index] - due)
        if has_due:
            due = table.dues[index]
        if deliveries:
            last = table.lasts[stop - 1] + 1
        end = table.offsets[stop - 1] + 1
        while index < stop:
            if table.is_ordered:
                at = memory.widen(out, 4)
                target = out
                memory.put_int32(target, at, table.hashes[index])
            index += 1
    return bytes(out)


def _run_end(table: PendingTable, index: _int) -> _int:
    """Return the end of the run of entries that begins at `index`."""
    marks = table.marks
    is_delivered = marks[index] >> _STATE_BITS > 0
    behind = index + 1
    while (
        behind < table.used
        and marks[behind] == marks[index]
        and table.offsets[behind] == table.offsets[behind - 1] + 1
        and table.dues[behind] == table.dues[index]
        and table.lasts[behind] == table.lasts[behind - 1] + is_delivered
        and table.firsts[behind] == table.firsts[behind - 1] + is_delivered
    ):
        behind += 1
    return behind


def decode_entries(table: PendingTable, data: bytes, at: _int, entries_max: _int) -> None:
    """Fill an empty table with the entries in data[at:]; its position, count of deliveries and clock are set before."""
    source = Numbers(data, at)
    end = 0
    last = 0
    due = table.clock_ms
    while source.at < source.end:
        gap = source.varint(_MOST)
        tag = source.byte()
        state = tag & _STATE_MASK
        length = 1 if tag & _ALONE else source.varint(_MOST) + 2
        if (
            length > entries_max - table.count
            or length > table.next_offset - end
            or gap > table.next_offset - end - length
        ):
            raise source.wrong("entries beyond the position, or the limit")
        deliveries = 1
        apart = 0
        if not tag & _ONCE:
            deliveries = source.varint(_COUNT_MAX)
            if deliveries:
                apart = source.varint(_MOST)
        if not tag & _FOLLOWS:
            last += source.zigzag(_MOST >> 1)
        has_due = state in (_HAND, _WAITS)
        if not tag & _SAME_DUE:
            due += source.zigzag(_MOST >> 1)
        if tag & 128 or not _is_state(state, deliveries) or not 0 <= due <= 2 * _TIME_MAX:
            raise source.wrong("no state of a message, or no time")
        if deliveries:
            last += gap
            if last - apart < 1 or last > table.delivered - length + 1:
                raise source.wrong("a consumer sequence that was not delivered")
        elif not tag & _FOLLOWS:
            raise source.wrong("a consumer sequence of a message that was not delivered")
        if not has_due and not tag & _SAME_DUE:
            raise source.wrong("a time for which nothing waits")
        offset = end + gap
        end = offset + length
        while offset < end:
            key_hash = source.key_hash() if table.is_ordered else 0
            if (state == _PARKED) != table.is_busy(key_hash):
                raise source.wrong("a message that waits for none of its key, or one that does not wait")
            table.append(
                offset,
                last if deliveries else 0,
                last - apart if deliveries else 0,
                due if has_due else _NEVER,
                deliveries,
                state,
                key_hash,
            )
            if deliveries:
                last += 1
            offset += 1


def _is_state(state: _int, deliveries: _int) -> bool:
    """True if an entry may be in this state."""
    if state == _READY:
        return True
    if state == _PARKED:
        return deliveries == 0
    return deliveries > 0 and state in (_HAND, _WAITS, _ENDED)


def apply_change(table: PendingTable, data: bytes, at: _int, entries_max: _int) -> None:
    """Apply the change in data[at:]; nothing is noted."""
    table.changes.is_on = False
    source = Numbers(data, at)
    ref = table.next_offset
    while source.at < source.end:
        tag = source.byte()
        op = tag & 15
        length = (tag >> 4) + 1
        if length == 16:
            length += source.varint(_MOST)
        if op in (_DELIVER, _KEYED, _PARK):
            _enter(table, source, op, length, entries_max)
        elif op == _CLOCK:
            table.clock_ms += source.varint(_TIME_MAX - table.clock_ms)
        elif op == _PASS:
            table.pass_to(table.next_offset + source.varint(_MOST - table.next_offset))
        elif op == _RESET:
            ref = source.varint(_MOST)
            table.reset(ref)
        elif op > _RESET:
            raise source.wrong(f"operation {op}")
        else:
            begin = ref + source.zigzag(_MOST >> 1)
            if begin < 0 or begin > table.next_offset or length > table.next_offset - begin:
                raise source.wrong("offsets beyond the position")
            ref = begin + length
            if op == _GONE:
                table.remove_range(begin, ref)
            elif op == _ALL:
                table.release_all(ref - 1)
            else:
                delay_ms = source.varint(_TIME_MAX) if op == _NAK else 0
                while begin < ref:
                    _change(table, source, op, begin, delay_ms)
                    begin += 1
    table.changes.is_on = True
    table.changes.clear(table.next_offset)


def _enter(table: PendingTable, source: Numbers, op: _int, length: _int, entries_max: _int) -> None:
    """Enter new messages."""
    offset = table.next_offset + source.varint(_MOST - table.next_offset)
    if length > entries_max - table.count or length > _MOST - offset or (op == _DELIVER) == table.is_ordered:
        raise source.wrong("more messages than may be, or none of this order")
    end = offset + length
    while offset < end:
        key_hash = source.key_hash() if op != _DELIVER else 0
        if (op == _PARK) != table.is_busy(key_hash):
            raise source.wrong("a message that waits for none of its key, or one that does not wait")
        if op == _PARK:
            table.park(offset, key_hash)
        else:
            table.enter(offset, key_hash)
        offset += 1


def _change(table: PendingTable, source: Numbers, op: _int, offset: _int, delay_ms: _int) -> None:
    """Change one entry."""
    index = table.find(offset)
    if index < 0 or table.marks[index] & _STATE_MASK == _PARKED:
        raise source.wrong(f"offset {offset} is not in hand")
    deliveries = table.marks[index] >> _STATE_BITS
    if op == _AGAIN:
        if deliveries >= table.max_deliver:
            raise source.wrong(f"offset {offset} is delivered more than {table.max_deliver} times")
        table.redeliver(index)
        return
    if deliveries == 0:
        raise source.wrong(f"offset {offset} was not delivered")
    if op == _SETTLE:
        table.release(index)
    elif op == _NAK:
        table.nak(index, delay_ms)
    else:
        table.progress(index)
