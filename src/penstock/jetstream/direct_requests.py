"""Parses requests for messages, which have the same fields in STREAM.MSG.GET and DIRECT.GET.

Rules: what nats-server refuses is refused, with its words. Field names and null values are taken as Go takes them. A
time is the first microsecond that is not before it, as messages have microseconds.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import msgspec

from penstock.base.errors import PenstockError
from penstock.base.ids import TimestampUs
from penstock.jetstream.errors import bad_request, invalid_json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)
_UINT64_MAX, _INT64_MAX = 2**64 - 1, 2**63 - 1
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)")


class RefusedRequestError(PenstockError):
    """A request of DIRECT.GET is refused: `text` follows the code 408."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class _Fields(msgspec.Struct):
    seq: int | None = None
    last_by_subj: str | None = None
    next_by_subj: str | None = None
    batch: int | None = None
    max_bytes: int | None = None
    start_time: str | None = None
    multi_last: list[str | None] | None = None
    up_to_seq: int | None = None
    up_to_time: str | None = None
    no_hdr: bool | None = None


class MessageQuery(msgspec.Struct, frozen=True):
    """A request for messages; 0, "" or None: not given."""

    seq: int = 0
    last_by_subj: str = ""
    next_by_subj: str = ""
    batch: int = 0
    max_bytes: int = 0
    start_us: TimestampUs | None = None
    multi_last: tuple[str, ...] = ()
    up_to_seq: int = 0
    up_to_us: TimestampUs | None = None
    no_hdr: bool = False


_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_NAMES = frozenset(_Fields.__struct_fields__)


def parse_direct(payload: bytes) -> MessageQuery:
    """Return the request of DIRECT.GET.<s>. RefusedRequestError."""
    if not payload:
        raise RefusedRequestError("Empty Request")
    query = _parsed(payload)
    if not (query.seq or query.last_by_subj or query.next_by_subj or query.multi_last or query.start_us is not None):
        raise RefusedRequestError("Empty Request")
    if (
        _is_contradictory(query)
        or (query.last_by_subj and (query.batch > 0 or query.multi_last))
        or (query.next_by_subj and query.multi_last)
        or (query.up_to_seq and query.up_to_us is not None)
    ):
        raise RefusedRequestError("Bad Request")
    return query


def parse_last_of_subject(payload: bytes, subject: str) -> MessageQuery:
    """Return the request of DIRECT.GET.<s>.<subject>. RefusedRequestError."""
    query = _parsed(payload) if payload else MessageQuery()
    if query != MessageQuery(max_bytes=query.max_bytes, no_hdr=query.no_hdr):
        raise RefusedRequestError("Bad Request")
    return msgspec.structs.replace(query, last_by_subj=subject)


def parse_message_get(payload: bytes) -> MessageQuery:
    """Return the request of STREAM.MSG.GET.<s>. ApiError."""
    if payload.strip() in (b"", b"{}"):
        raise bad_request()
    try:
        query = _parsed(payload, is_strict=True)
    except RefusedRequestError as error:
        raise invalid_json(str(error.__cause__)) from None
    is_given = query.seq or query.last_by_subj or query.next_by_subj or query.start_us is not None
    if query.batch > 0 or query.max_bytes > 0 or not is_given or _is_contradictory(query):
        raise bad_request()
    return query


def _is_contradictory(query: MessageQuery) -> bool:
    is_timed = query.start_us is not None
    return bool(
        (query.seq and (query.last_by_subj or is_timed)) or (query.last_by_subj and (is_timed or query.next_by_subj))
    )


def _parsed(payload: bytes, *, is_strict: bool = False) -> MessageQuery:
    """Return the fields. RefusedRequestError "Malformed Request", with its reason as the cause."""
    try:
        raw = _decode(payload)
        if is_strict and (unknown := [name for name in raw if name.lower() not in _NAMES]):
            raise msgspec.ValidationError(f'json: unknown field "{unknown[0]}"')
        named = {name.lower(): value for name, value in raw.items() if name.lower() in _NAMES}
        fields = msgspec.json.decode(msgspec.json.encode(named), type=_Fields)
        return _query(fields)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RefusedRequestError("Malformed Request") from error


def _query(fields: _Fields) -> MessageQuery:
    seq, up_to_seq = fields.seq or 0, fields.up_to_seq or 0
    if not (0 <= seq <= _UINT64_MAX and 0 <= up_to_seq <= _UINT64_MAX):
        raise ValueError("a sequence is no uint64")
    if max(abs(fields.batch or 0), abs(fields.max_bytes or 0)) > _INT64_MAX:
        raise ValueError("a number is no int64")
    return MessageQuery(
        seq=seq,
        last_by_subj=fields.last_by_subj or "",
        next_by_subj=fields.next_by_subj or "",
        batch=fields.batch or 0,
        max_bytes=fields.max_bytes or 0,
        start_us=None if fields.start_time is None else time_us(fields.start_time),
        multi_last=tuple(one or "" for one in fields.multi_last or ()),
        up_to_seq=up_to_seq,
        up_to_us=None if fields.up_to_time is None else time_us(fields.up_to_time),
        no_hdr=bool(fields.no_hdr),
    )


def time_us(text: str) -> TimestampUs:
    """Return the first microsecond that is not before an RFC 3339 time. ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no RFC 3339 time")
    moment, fraction, zone = found.groups()
    whole = datetime.fromisoformat(moment + zone.replace("Z", "+00:00"))
    digits = (fraction or "").ljust(6, "0")
    is_between = any(digit != "0" for digit in digits[6:])
    return TimestampUs((whole - _EPOCH) // _US + int(digits[:6]) + is_between)
