"""Write the answers to all refused messages of a group at once.

Rules: the caller makes the bodies, once for each kind; here is only the work per message. A body has at most one NUL,
as the placeholder for the message's number: JSON contains no other. Some kinds quote the message, so each may differ:
the number of such bodies is limited, and further ones get a general text.

    PUB _INBOX.a 128␍␊{"error":{"code":400,"err_code":10054,"description":"… 1200 …"},"stream":"orders","seq":0}␍␊

| verdict     | quoted part of the message                             |
|-------------|--------------------------------------------------------|
| UNSUPPORTED | the names of its headers that are not supported        |
| BAD_SUBJECT | its subject                                            |
| ELSEWHERE   | the partition that has the first message: all of these |
| MISTYPED    | its mark, which stands for a reason, and its row       |
| any other   | nothing                                                |

An enveloped message gets the same body within an ack; see `envelope_acks`. ELSEWHERE is no refusal: an enveloped
message is then acked as the first was. A JetStream delivery that is refused gets no answer: the consumer redelivers it
after its `ack_wait`, until it is accepted or `max_deliver` is reached.
"""

from __future__ import annotations

from collections.abc import Callable

try:
    import cython
except ImportError:
    from penstock.hot import cython

from penstock.hot import classification, envelope_acks, headers, memory, places, subjects
from penstock.hot.classification import RefusedMessage
from penstock.hot.message_group import MessageGroup

_UNSUPPORTED = classification.UNSUPPORTED
_BAD_SUBJECT = classification.BAD_SUBJECT
_ELSEWHERE = classification.ELSEWHERE
_MISTYPED = classification.MISTYPED
_KINDS = classification.LAST + 1
_ACK_ERRORS = {
    classification.WRONG_SEQUENCE: envelope_acks.INCORRECT_OFFSET,
    classification.TOO_LARGE: envelope_acks.TOO_LARGE,
    classification.HEADERS_LARGE: envelope_acks.TOO_LARGE,
    classification.KEY_LARGE: envelope_acks.TOO_LARGE,
}
_NUMBER = 0x00
_SPACE = 0x20
_PUB = b"PUB "
_LINE_END = b"\r\n"
_JETSTREAM_ACKED = subjects.JETSTREAM_ACKED
_int = int


def answers(
    group: MessageGroup,
    refused: list[RefusedMessage],
    body_of: Callable[[int, bytes | None], bytes],
    quotes_max: _int,
    ack_head: bytes,
) -> bytes:
    """Return `PUB` commands for those of `refused` that get an answer, in order; `ack_head` as in `envelope_acks`.

    `body_of(verdict, quoted)` makes a body; with None it quotes nothing.
    """
    out = bytearray()
    text = group.data
    numbers = group.numbers
    known: list[dict[bytes | None, bytes]] = [{} for _ in range(_KINDS)]
    for one in refused:
        if not one.is_answered:
            continue
        at = one.row * places.STRIDE
        if one.enveloped is None and subjects.is_jetstream_ack(
            text, numbers[at + places.REPLY], numbers[at + places.REPLY + 1]
        ):
            if one.verdict == _ELSEWHERE:
                _answer(out, text, numbers[at + places.REPLY], numbers[at + places.REPLY + 1], _JETSTREAM_ACKED, 0)
            continue
        if one.verdict == _ELSEWHERE and one.enveloped is not None:
            tail = envelope_acks.standing_tail(one.partition, 0, 0, False)
            out += envelope_acks.acks(one.enveloped, ack_head, one.number - 1, 0, tail)
            continue
        quoted = quoted_of(group, one)
        bodies = known[one.verdict]
        body = bodies.get(quoted)
        if body is None:
            if len(bodies) >= quotes_max and one.verdict != _ELSEWHERE:
                quoted = b"%d" % one.number if one.verdict == _MISTYPED else None
                body = bodies.get(quoted)
            if body is None:
                body = bodies[quoted] = body_of(one.verdict, quoted)
        if one.enveloped is None:
            _answer(out, text, numbers[at + places.REPLY], numbers[at + places.REPLY + 1], body, one.number)
        else:
            told = body.replace(b"\0", b"%d" % one.number)
            tail = envelope_acks.error_tail(_ACK_ERRORS.get(one.verdict, envelope_acks.UNKNOWN), told)
            out += envelope_acks.refusals(one.enveloped, ack_head, tail)
    return bytes(out)


def quoted_of(group: MessageGroup, one: RefusedMessage) -> bytes | None:
    """Return the part of a message that is quoted to its publisher; see the table."""
    at = one.row * places.STRIDE
    if one.verdict == _UNSUPPORTED:
        return headers.asked_for(group.data, group.numbers[at + places.HEADERS], group.numbers[at + places.HEADERS + 1])
    if one.verdict == _BAD_SUBJECT:
        return group.subject(one.row)
    if one.verdict == _MISTYPED:
        return b"%d %d" % (one.number, one.row)
    return b"%d" % one.partition if one.verdict == _ELSEWHERE else None


def answers_alike(replies: bytes, body: bytes) -> bytes:
    """Return `PUB` commands with one body for `replies`: reply subjects, each followed by a space, as in `acks`."""
    out = bytearray()
    text = replies
    begin = 0
    end = memory.find_byte(text, _SPACE, 0, len(replies))
    while end >= 0:
        if end > begin and not subjects.is_jetstream_ack(text, begin, end):
            _answer(out, text, begin, end, body, 0)
        begin = end + 1
        end = memory.find_byte(text, _SPACE, begin, len(replies))
    return bytes(out)


def _answer(out: bytearray, text: bytes, begin: _int, end: _int, body: bytes, number: _int) -> None:
    """Append one command to `out`, for the reply subject text[begin:end]."""
    body_text = body
    mark = memory.find_byte(body_text, _NUMBER, 0, len(body))
    if not cython.compiled:
        whole = body if mark < 0 else b"%b%d%b" % (body[:mark], number, body[mark + 1 :])
        out += b"PUB %b %d\r\n%b\r\n" % (text[begin:end], len(whole), whole)
        return
    size = len(body)
    if mark >= 0:
        size += memory.decimal_digits(number) - 1
    at = memory.widen(out, 4 + (end - begin) + 1 + memory.decimal_digits(size) + 2 + size + 2)
    target = out
    pub_text = _PUB
    line_end = _LINE_END
    memory.put(target, at, pub_text, 0, 4)
    memory.put(target, at + 4, text, begin, end)
    at += 4 + end - begin
    target[at] = _SPACE
    at = memory.put_decimal(target, at + 1, size)
    memory.put(target, at, line_end, 0, 2)
    at += 2
    if mark < 0:
        memory.put(target, at, body_text, 0, size)
        at += size
    else:
        memory.put(target, at, body_text, 0, mark)
        at = memory.put_decimal(target, at + mark, number)
        memory.put(target, at, body_text, mark + 1, len(body))
        at += len(body) - mark - 1
    memory.put(target, at, line_end, 0, 2)
