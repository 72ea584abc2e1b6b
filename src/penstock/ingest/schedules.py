"""Schedules: messages that are sent to another subject of their stream at a given time (JetStream's ADR-51).

Rules: what is stored can be sent when its time has come. A schedule replaces what there is on its subject: it gets
`Nats-Rollup: sub`, as nats-server adds it. A schedule that repeats is refused ([ADR 111]). The checks are those of
nats-server, in its order.

| header                 | of a schedule                                                                         |
|------------------------|---------------------------------------------------------------------------------------|
| `Nats-Schedule`        | `@at`, and a time as RFC 3339 writes it                                               |
| `Nats-Schedule-Target` | subject of the message that is sent: another one of the stream                        |
| `Nats-Schedule-TTL`    | its `Nats-TTL`, if the stream allows that                                             |
| `Nats-Schedule-Source` | its content is that of the last message on this subject, if there is one by then      |
| `Nats-Schedule-Rollup` | `sub`: it has a `Nats-Rollup: sub`                                                    |

| header                         | of a message that is sent, or ends a schedule before its time                     |
|--------------------------------|-----------------------------------------------------------------------------------|
| `Nats-Scheduler`               | subject of the schedule                                                           |
| `Nats-Schedule-Next: purge`    | that schedule goes with this message, in one step                                 |

The content of a sent message is that of its schedule, without these headers and without those that ask for something
of the schedule: `Nats-Expected-…`, `Nats-Msg-Id`, `Nats-TTL`, `Nats-Rollup`. It is within the limits of messages and
of header blocks: the last headers of the content are left out for it. A schedule whose value leaves no room for its own
headers is refused; where a source's value does, or the stream takes less by then, it is not sent, and told.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from penstock.base import limits
from penstock.base.config import StreamConfig
from penstock.base.dead_letters import fitting
from penstock.base.subjects import matches, subject_mistake
from penstock.hot import classification as verdicts
from penstock.hot.lifetimes import is_ttl
from penstock.hot.message_group import MessageGroup

_PATTERN = "message schedules pattern is invalid"
_ONCE = "a schedule is '@at TIME'; '@every', names such as '@hourly', and cron patterns are not supported"
REFUSALS: dict[int, tuple[int, str]] = {
    verdicts.BAD_SCHEDULE: (10189, _PATTERN),
    verdicts.CRON_SCHEDULE: (10189, f"{_PATTERN}: {_ONCE}"),
    verdicts.BAD_TARGET: (10190, "message schedules target is invalid"),
    verdicts.BAD_SCHEDULE_TTL: (10191, "message schedules invalid per-message TTL"),
    verdicts.BAD_SCHEDULE_ROLLUP: (10192, "message schedules invalid rollup"),
    verdicts.BAD_SOURCE: (10203, "message schedules source is invalid"),
    verdicts.BAD_SCHEDULER: (10212, "message schedules invalid scheduler"),
    verdicts.BAD_TIME_ZONE: (10223, "message schedules time zone is invalid"),
    verdicts.SCHEDULE_LARGE: (
        10054,
        "message size exceeds maximum allowed: the value leaves no room for the headers of what the schedule sends",
    ),
}
"""JetStream's error code and text of each verdict."""

_AT = b"@at "
_CRON = re.compile(rb"@every .*|@(?:yearly|annually|monthly|weekly|daily|midnight|hourly)|\S+(?: +\S+){5}")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT)(\d{1,2})(:\d\d:\d\d)(?:[.,](\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)
"""Times that Go's `time.Parse` takes as RFC 3339."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCHEDULE = b"Nats-Schedule"
_LINE = b"\r\nNats-Schedule:"
_TARGET, _SOURCE = b"Nats-Schedule-Target", b"Nats-Schedule-Source"
_TTL, _ROLLUP, _ZONE = b"Nats-Schedule-TTL", b"Nats-Schedule-Rollup", b"Nats-Schedule-Time-Zone"
_NEXT, _SCHEDULER = b"Nats-Schedule-Next", b"Nats-Scheduler"
_SENT_WITHOUT = (b"Nats-Schedule", b"Nats-Expected-", b"Nats-Msg-Id:", b"Nats-TTL:", b"Nats-Rollup:")
PURGE = b"purge"
_VERSION_LINE = b"NATS/1.0\r\n"


class ScheduleRules(NamedTuple):
    """A stream's rules for schedules."""

    subjects: tuple[str, ...]
    allows_ttls: bool
    message_bytes_max: int

    @classmethod
    def of(cls, config: StreamConfig) -> ScheduleRules:
        """Return the rules of a stream that allows schedules."""
        return cls(config.subjects, config.allow_message_ttl, config.max_message_bytes)

    def stores(self, subject: bytes) -> bool:
        """True if a plain subject is one of the stream."""
        name = subject.decode()
        return any(matches(one, name) for one in self.subjects)

    def headers_max(self, value: bytes | None) -> int:
        """Return how many bytes the headers of a message with that value may have."""
        return min(limits.HEADER_BLOCK_BYTES_MAX, self.message_bytes_max - len(value or b""))


class Schedule(NamedTuple):
    """A valid schedule. `due_us`: wall-clock time, µs since 1970 UTC; 1 for a time before."""

    due_us: int
    target: bytes
    source: bytes  # empty: none
    ttl: bytes
    rollup: bytes


def checked(group: MessageGroup, rules: ScheduleRules | None) -> tuple[MessageGroup, bytes]:
    """Return the group with the headers that its schedules get, and a verdict for each message, 0 for what is taken.

    `rules` None: the stream allows no schedules.
    """
    out = bytearray(len(group))
    replaced: dict[int, bytes] = {}
    for row in range(len(group)):
        block = group.headers(row)
        if block is None or _SCHEDULE not in block:
            continue
        fields = fields_of(block)
        subject = group.subject(row)
        found = _verdict(fields, subject, rules)
        if isinstance(found, int):
            out[row] = found
        elif rules is not None and sent_headers(block, subject, found, rules.headers_max(group.value(row))) is None:
            out[row] = verdicts.SCHEDULE_LARGE
        elif b"Nats-Rollup" not in fields:
            replaced[row] = with_line(block, b"Nats-Rollup", b"sub")
    return group.with_headers(replaced) if replaced else group, bytes(out)


def _verdict(fields: dict[bytes, bytes], subject: bytes, rules: ScheduleRules | None) -> int | Schedule:
    """Return why a message is not taken, 0 if it is no schedule, or the schedule."""
    found = parsed(fields)
    if rules is None:  # what a JetStream stream republishes tells its scheduler, and comes without a reply subject
        return verdicts.NO_SCHEDULES if found else 0
    if isinstance(found, Schedule):
        found = refusal(found, fields, subject, rules) or found
    if isinstance(found, int) and found:
        return found
    return _of_ending(fields, subject) or found


def parsed(fields: dict[bytes, bytes]) -> Schedule | int:
    """Return the schedule in the headers of a message: a verdict if its pattern is invalid, 0 if there is none."""
    zone = fields.get(_ZONE)
    if zone is not None and not _is_zone(zone):
        return verdicts.BAD_TIME_ZONE
    pattern = fields.get(_SCHEDULE)
    if not pattern:
        return 0
    if not pattern.startswith(_AT):
        return verdicts.CRON_SCHEDULE if _CRON.fullmatch(pattern) else verdicts.BAD_SCHEDULE
    due_us = None if zone is not None else time_us(pattern[len(_AT) :])
    if due_us is None:
        return verdicts.BAD_SCHEDULE
    named = (fields.get(name, b"") for name in (_TARGET, _SOURCE, _TTL, _ROLLUP))
    return Schedule(max(due_us, 1), *named)


def due_us_of(block: bytes) -> int:
    """Return the time of a stored schedule, by its header block; 0: it is none. It may still be invalid otherwise."""
    begin = block.find(_LINE) + len(_LINE)
    pattern = block[begin : block.find(b"\r\n", begin)].strip() if begin >= len(_LINE) else b""
    due_us = time_us(pattern[len(_AT) :]) if pattern.startswith(_AT) else None
    return 0 if due_us is None else max(due_us, 1)


def refusal(found: Schedule, fields: dict[bytes, bytes], subject: bytes, rules: ScheduleRules) -> int:
    """Return the verdict on all but the time of a schedule; 0: it can be sent.

    A stored schedule may be refused, too: it came by another way, or before the stream allowed schedules, or the
    stream's config has changed.
    """
    if found.ttl and not is_ttl(found.ttl):
        return verdicts.BAD_SCHEDULE_TTL
    if found.rollup not in (b"", b"sub"):
        return verdicts.BAD_SCHEDULE_ROLLUP
    if found.ttl and not rules.allows_ttls:
        return verdicts.TTL_DISABLED
    if not is_plain(found.target) or found.target == subject:
        return verdicts.BAD_TARGET
    if found.source and (found.source in (found.target, subject) or not is_plain(found.source)):
        return verdicts.BAD_SOURCE
    if not rules.stores(found.target):
        return verdicts.BAD_TARGET
    if found.source and not rules.stores(found.source):
        return verdicts.BAD_SOURCE
    rollup = fields.get(b"Nats-Rollup", b"")
    return verdicts.BAD_SCHEDULE_ROLLUP if rollup and rollup.lower() != b"sub" else 0


def _of_ending(fields: dict[bytes, bytes], subject: bytes) -> int:
    """Check what names a schedule to end, or to have been sent by one."""
    following, scheduler = fields.get(_NEXT, b""), fields.get(_SCHEDULER, b"")
    if not following:
        return verdicts.BAD_SCHEDULER if scheduler else 0
    is_right = following == PURGE and scheduler != subject and is_plain(scheduler)
    return 0 if is_right else verdicts.BAD_SCHEDULER


def ended(block: bytes) -> bytes | None:
    """Return the subject of the schedule that a message ends; None if it ends none."""
    fields = fields_of(block)
    return fields.get(_SCHEDULER) or None if fields.get(_NEXT) == PURGE else None


def sent_headers(block: bytes, scheduler: bytes, schedule: Schedule, room: int) -> bytes | None:
    """Return the headers of the message that is sent, of at most `room` bytes; None if its own do not fit.

    `block` has those of its content, of which the last ones are left out if there is no room for them; `scheduler` is
    the subject of its schedule.
    """
    lines = block.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]
    own = [_SCHEDULER + b": " + scheduler, _NEXT + b": " + PURGE]
    if schedule.ttl:
        own.append(b"Nats-TTL: " + schedule.ttl)
    if schedule.rollup:
        own.append(b"Nats-Rollup: " + schedule.rollup)
    tail = b"".join(line + b"\r\n" for line in own) + b"\r\n"
    room -= len(_VERSION_LINE) + len(tail)
    if room < 0:
        return None
    kept = fitting([line + b"\r\n" for line in lines if not line.startswith(_SENT_WITHOUT)], room)
    return _VERSION_LINE + b"".join(kept) + tail


def fields_of(block: bytes) -> dict[bytes, bytes]:
    """Return the `Nats-` headers of a block; of several with one name the first."""
    found: dict[bytes, bytes] = {}
    for line in block.split(b"\r\n\r\n", 1)[0].split(b"\r\n")[1:]:
        if line.startswith(b"Nats-"):
            name, colon, value = line.partition(b":")
            if colon:
                found.setdefault(name, value.strip())
    return found


def with_line(block: bytes, name: bytes, value: bytes) -> bytes:
    """Return a header block with one more header, as the last one."""
    return block.split(b"\r\n\r\n", 1)[0] + b"\r\n" + name + b": " + value + b"\r\n\r\n"


def time_us(text: bytes) -> int | None:
    """Return a time as RFC 3339 writes it in µs since 1970 UTC, rounded up; None if it is invalid."""
    found = _TIME.fullmatch(text.decode("latin-1"))
    if found is None:
        return None
    day, hour, rest, fraction, zone = found.groups()
    try:
        at = datetime.fromisoformat(f"{day}{hour:0>2}{rest}{'+00:00' if zone == 'Z' else zone}")
    except ValueError:
        return None
    since = at - _EPOCH
    digits = f"{fraction or ''}000000"
    return (since.days * 86_400 + since.seconds) * 1_000_000 + int(digits[:6]) + (int(digits[6:] or 0) > 0)


def is_plain(subject: bytes) -> bool:
    """True if a message can be on that subject."""
    try:
        return subject_mistake(subject.decode()) is None
    except UnicodeDecodeError:
        return False


def _is_zone(name: bytes) -> bool:
    """True if a time zone may have that name: none is honoured, so no list of them is read."""
    return re.fullmatch(rb"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9_+-]+)*", name) is not None
