"""Find the lines in a buffer of the leaf protocol, server to leaf, and keep the set of subjects with interest.

Rules: only whole lines are taken; the rest stays for the next call. Every size is bounded before it is used. Bytes that
are not the protocol raise ProtocolError. Nothing that a *subscriber* chooses raises, or any client of the account could
cut the leaf connection: a longer line than NATS_CONTROL_LINE_BYTES_MAX is skipped, and what the bounds have no room for
is counted.

| line                                 | becomes                                                                     |
|--------------------------------------|-----------------------------------------------------------------------------|
| `LS+ subject␍␊`                      | the key `subject` is added                                                  |
| `LS+ subject queue weight␍␊`         | the key `subject queue` is added; sent again when only the weight changes;  |
|                                      | the queue group is added to those of the subject (`groups`)                 |
| `LS- subject␍␊`, `LS- subject queue` | the key is removed; if it is watched, it is noted in `lost`                 |
| `LMSG …`, `RMSG …`, `HMSG …`         | skipped with its payload: a leaf without subscriptions should get none      |
| any other line up to `␍␊`            | one entry in `lines`, in order                                              |

nats-server sends a key without a queue once, when the first such subscription is made, and its removal after the last
one. So the number of those without room is exact (`untracked`), and the set is complete again once it is 0.

A subscription with wildcards is a key like any other. To find it, a look-up needs the *shapes* in use: how many tokens,
which of them are `*`, and if a `>` follows. Clients use very few.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.hot import memory
from penstock.hot.scan import ProtocolError

_int = int

SHAPE_TOKENS_MAX = 24
"""Tokens before the `>` of a key with wildcards; one with more is untracked."""

_TOKENS_MAX = 24  # the same for compiled code
_SHAPES_MAX = limits.INTEREST_SHAPES_MAX
_LINE_BYTES_MAX = limits.NATS_CONTROL_LINE_BYTES_MAX
_SIZE_DIGITS_MAX = len(str(limits.NATS_PAYLOAD_BYTES_MAX))
_IN_LINE = -1  # `skip_bytes` within a line that is too long
_LF = 0x0A
_CR = 0x0D
_SPACE = 0x20
_STAR = 0x2A
_DOT = 0x2E
_GREATER = 0x3E
_GROUPS_BYTES_MAX = limits.INTEREST_GROUPS_BYTES_MAX
_REGROUPED_MAX = limits.INTEREST_REGROUPED_MAX
_ADDED = b"LS+ "
_REMOVED = b"LS- "
_LMSG = b"LMSG "
_RMSG = b"RMSG "
_HMSG = b"HMSG "
_NO_SHAPE = -1  # a key without wildcards
_TOO_LONG = -2


class InterestKeys:
    """The keys of one connection; see the module's table.

    `shapes`: number of keys of each shape of wildcards. `untracked`: number of keys without a queue that had no room;
    `queues_untracked`: some key with a queue had no room. `watched`: keys whose removal is noted in `lost`; the caller
    fills it, and empties `lost` and `lines`. `groups`: the queue groups of each subject, separated by spaces, as far as
    they fit into INTEREST_GROUPS_BYTES_MAX. `regrouped`: subjects whose groups have changed; the caller
    empties it. `all_regrouped`: those of any may have, so many were they.
    """

    __slots__ = (
        "all_regrouped",
        "groups",
        "keys",
        "keys_max",
        "lines",
        "lost",
        "queues_untracked",
        "regrouped",
        "shapes",
        "size_bytes",
        "size_bytes_max",
        "skip_bytes",
        "untracked",
        "watched",
    )

    def __init__(self, keys_max: _int, size_bytes_max: _int) -> None:
        self.keys: set[bytes] = set()
        self.shapes: dict[int, int] = {}
        self.watched: dict[bytes, set[bytes]] = {}
        self.groups: dict[bytes, bytes] = {}
        self.regrouped: list[bytes] = []
        self.all_regrouped = True
        self.lost: list[bytes] = []
        self.lines: list[bytes] = []
        self.size_bytes = 0
        self.untracked = 0
        self.queues_untracked = False
        self.skip_bytes = 0
        self.keys_max = keys_max
        self.size_bytes_max = size_bytes_max


def scan_interest(buffer: bytes | bytearray | memoryview, start: _int, end: _int, sink: InterestKeys) -> int:
    """Take the whole lines of buffer[start:end] into `sink`; return the position after the last one.

    Raise ProtocolError; `sink` then holds the lines before the error.
    """
    return start + _scan(memory.part(buffer, start, end), sink)


def _scan(data: bytes, sink: InterestKeys) -> int:
    text = data
    data_end = len(data)
    position = 0
    while True:
        if sink.skip_bytes:
            position = _skip(data, position, sink)
            if sink.skip_bytes:
                return position
        line_end = memory.find_byte(text, _LF, position, min(position + _LINE_BYTES_MAX, data_end))
        is_added = memory.begins(text, position, data_end, _ADDED)
        is_removed = not is_added and memory.begins(text, position, data_end, _REMOVED)
        if line_end < 0:
            if data_end - position < _LINE_BYTES_MAX:
                return position
            if not is_added and not is_removed:
                raise ProtocolError(f"no end of line within {_LINE_BYTES_MAX} bytes", position, data[position:])
            sink.skip_bytes = _IN_LINE
            continue
        if line_end == position or text[line_end - 1] != _CR:
            raise ProtocolError("line without CR LF", position, data[position : line_end + 1])
        if is_added:
            _add(data, position + len(_ADDED), line_end - 1, sink)
        elif is_removed:
            _remove(data, position + len(_REMOVED), line_end - 1, sink)
        elif (
            memory.begins(text, position, data_end, _LMSG)
            or memory.begins(text, position, data_end, _RMSG)
            or memory.begins(text, position, data_end, _HMSG)
        ):
            sink.skip_bytes = _payload_bytes(data, position, line_end - 1)
        else:
            sink.lines.append(data[position : line_end - 1])
        position = line_end + 1


def _add(data: bytes, begin: int, end: int, sink: InterestKeys) -> None:
    text = data
    subject_end = memory.find_byte(text, _SPACE, begin, end)
    has_queue = subject_end >= 0
    key_end = end
    if has_queue:
        key_end = memory.find_byte(text, _SPACE, subject_end + 1, end)
        if key_end < 0:
            return  # no weight: not a line of nats-server's
    else:
        subject_end = end
    if subject_end == begin:
        return
    key = data[begin:key_end]
    if key in sink.keys:
        return
    shape = _shape(data, begin, subject_end)
    size = key_end - begin
    has_room = len(sink.keys) < sink.keys_max and sink.size_bytes + size <= sink.size_bytes_max and shape != _TOO_LONG
    if has_room and shape >= 0:
        has_room = shape in sink.shapes or len(sink.shapes) < _SHAPES_MAX
    if not has_room:
        if has_queue:
            sink.queues_untracked = True
        else:
            sink.untracked += 1
        return
    sink.keys.add(key)
    sink.size_bytes += size
    if shape >= 0:
        sink.shapes[shape] = sink.shapes.get(shape, 0) + 1
    if has_queue:
        _group_came(data[begin:subject_end], data[subject_end + 1 : key_end], sink)


def _remove(data: bytes, begin: int, end: int, sink: InterestKeys) -> None:
    key = data[begin:end]
    if key not in sink.keys:
        if memory.find_byte(data, _SPACE, begin, end) < 0 and end > begin and sink.untracked > 0:
            sink.untracked -= 1
        return
    sink.keys.remove(key)
    sink.size_bytes -= end - begin
    subject_end = memory.find_byte(data, _SPACE, begin, end)
    shape = _shape(data, begin, subject_end if subject_end >= 0 else end)
    if shape >= 0:
        count = sink.shapes[shape] - 1
        if count:
            sink.shapes[shape] = count
        else:
            del sink.shapes[shape]
    if key in sink.watched:
        sink.lost.append(key)
    if subject_end >= 0:
        _group_went(data[begin:subject_end], data[subject_end + 1 : end], sink)


def _group_came(subject: bytes, group: bytes, sink: InterestKeys) -> None:
    groups = sink.groups.get(subject)
    joined = group if groups is None else b"%b %b" % (groups, group)
    if len(joined) <= _GROUPS_BYTES_MAX:
        sink.groups[subject] = joined
        _regrouped(subject, sink)


def _group_went(subject: bytes, group: bytes, sink: InterestKeys) -> None:
    groups = sink.groups.get(subject)
    if groups is None:
        return
    left = b" ".join([one for one in groups.split(b" ") if one != group])
    if left:
        sink.groups[subject] = left
    else:
        del sink.groups[subject]
    _regrouped(subject, sink)


def _regrouped(subject: bytes, sink: InterestKeys) -> None:
    if len(sink.regrouped) < _REGROUPED_MAX:
        sink.regrouped.append(subject)
    else:
        sink.all_regrouped = True


def _shape(data: bytes, begin: int, end: int) -> int:
    """Return the shape of a subject's wildcards: tokens that are `*` as bits from 6 on, number of tokens before a `>`
    in bits 1 to 5, the lowest bit for a `>`; _NO_SHAPE without wildcards, _TOO_LONG beyond SHAPE_TOKENS_MAX.
    """
    text = data
    if memory.find_byte(text, _STAR, begin, end) < 0 and memory.find_byte(text, _GREATER, begin, end) < 0:
        return _NO_SHAPE
    stars = count = 0
    has_rest = False
    token = begin
    while token <= end:
        token_end = memory.find_byte(text, _DOT, token, end)
        if token_end < 0:
            token_end = end
        is_single = token_end - token == 1
        if is_single and text[token] == _GREATER and token_end == end:
            has_rest = True
        elif count == _TOKENS_MAX:
            return _TOO_LONG
        else:
            if is_single and text[token] == _STAR:
                stars |= 1 << count
            count += 1
        token = token_end + 1
    if not stars and not has_rest:
        return _NO_SHAPE
    return stars << 6 | count << 1 | has_rest


def _payload_bytes(data: bytes, position: int, end: int) -> int:
    """Return the bytes that follow the line of a message: its payload and CR LF."""
    size = memory.number(data, 1 + data.rfind(b" ", position, end), end, _SIZE_DIGITS_MAX)
    if not 0 <= size <= limits.NATS_PAYLOAD_BYTES_MAX:
        raise ProtocolError("a message without a size", position, data[position:end])
    return size + 2


def _skip(data: bytes, position: int, sink: InterestKeys) -> int:
    """Skip the available part of a message or of a line that is too long."""
    rest = len(data) - position
    if sink.skip_bytes == _IN_LINE:
        line_end = memory.find_byte(data, _LF, position, len(data))
        if line_end < 0:
            return len(data)
        sink.skip_bytes = 0
        return line_end + 1
    taken = min(rest, sink.skip_bytes)
    sink.skip_bytes -= taken
    return position + taken
