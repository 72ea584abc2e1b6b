"""Admission of the messages of a group: which become rows, and what error acks the others get.

Rules: rows keep the order of arrival. A refused message gets an error ack if it would have been acked, and is always
counted: nothing is dropped silently. If a header requests a check that this broker cannot make, the message is refused:
a publisher that expects a check must not be acked without it.

The refusals of one socket read are bounded by the read: each quotes no more than its own message, plus a fixed text,
and no message is shorter than 15 bytes on the wire. A test checks that they stay below REFUSALS_GROWTH_MAX times its
size. Of values that do not fit their schemas, the first SCHEMA_EXPLAINED_PER_GROUP_MAX are explained, in bounded texts.

The checks run in JetStream's order: expected stream, time to live, last subject sequence, last
sequence, message id, last id, schedule, rollup, size.

| header                                    | effect                                                               |
|-------------------------------------------|----------------------------------------------------------------------|
| `Penstock-Key`                            | the row's key                                                        |
| `Penstock-Key-Base64`                     | the row's key, for keys that are not text                            |
| `Penstock-Tombstone: 1`                   | the row's value is null; refused with a payload                      |
| `Penstock-Ack: none|leader|all`           | no ack; ack once written; ack once as durable as the stream promises |
| `Nats-Expected-Stream`                    | a stream of another name does not store it; it answers 10060 if no   |
|                                           | other stream is on the subject, and else is silent                   |
| `Nats-Expected-Last-Sequence`             | stored only if the last sequence is that one                         |
| `Nats-Expected-Last-Subject-Sequence`     | the same for the last sequence of its subject, 0 if it has none      |
| `Nats-Expected-Last-Subject-Sequence-Subject` | the subject whose last sequence that is, in place of the         |
|                                           | message's own: a plain one, in a stream of one partition             |
| `Nats-Msg-Id`                             | not stored again in the deduplication window: acked as a duplicate   |
| `Nats-Expected-Last-Msg-Id`               | stored only if the last message has that id                          |
| `Nats-TTL`                                | deleted after that time, if the stream allows it                     |
| `Nats-Rollup: sub|all`                    | deletes older ones, of its subject or all, if the stream allows it   |
| `Nats-Schedule: @at TIME`, and others     | sent to another subject of the stream then, if it allows schedules   |
| `Nats-Schedule…`, `Nats-Scheduler`        | (`ingest.schedules`)                                                 |
| `Nats-Batch-Id`, `-Sequence`, `-Commit`   | stored with the others of its batch, or none of them, if the stream  |
|                                           | allows atomic batches (`atomic_batches`)                             |
| `Nats-Incr`                               | refused: there are no counters; so is a reply subject of a fast      |
|                                           | batch, which ends with `.$FI`                                        |
| other `Nats-` names that request something | refused, without an effect: `Nats-Batch-` of later versions, …       |
| every other `Nats-` name                  | stored, no effect, as in JetStream                                   |
| names that Penstock gives to what it      | stored, no effect                                                    |
| delivers                                  |                                                                      |
| every other `Penstock-` name              | refused: it requests something of a later version                    |

With a schema check, a message whose value does not fit is refused after all of these, or counted (`value_check`).
Last, a stream that discards new messages refuses each one that would exceed a limit (`Room`), or whose subject has as
many messages as it may, if it does so by subject. Else such a message takes the place of another one, and needs no room
for a row.

A subject is also refused if the socket API would refuse it: nats-server lets `orders.*` and control characters pass.

A message delivered by a JetStream consumer is acked in JetStream's form, and gets no answer if it is refused, so that
it is redelivered; idle heartbeats and flow control requests are not rows; see `hot.classification`.

A message in an envelope (see `hot.envelope`) passes the same checks. The envelope's fields count as headers if the
message has no such headers itself; its ack has Liftbridge's form, and goes to the envelope's ack inbox if it names one.

| of an envelope   | effect                                                                              |
|------------------|-------------------------------------------------------------------------------------|
| `key`            | the row's key                                                                       |
| `headers`        | appended to the message's own headers, and treated like them                        |
| `offset`         | from 0 on: stored only if it gets that offset                                       |
| `ack_policy`     | like `Penstock-Ack`: 0 leader, 1 all, 2 none                                        |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from penstock.base import limits
from penstock.base.config import Acks, SchemaCheck, StreamConfig
from penstock.base.subjects import RESERVED_PREFIXES, begins_with_wildcard, subject_mistake
from penstock.batch.header import row_flags
from penstock.hot import classification, envelope_acks, refusals, subjects, unwrap
from penstock.hot.classification import Classified, RefusedMessage, classify, close
from penstock.hot.headers import HeaderFields, unsupported
from penstock.hot.message_group import MessageGroup, TooLarge
from penstock.hot.message_ids import MessageIds
from penstock.hot.subject_table import SubjectTable
from penstock.ingest import acks, schedules
from penstock.ingest.last_sequences import LastSequences
from penstock.ingest.value_check import UNDECIDED, ValueCheck
from penstock.messages.streams import CONSUMER_CONTROL, UNMET_EXPECTATION

BodyOf = Callable[[int, bytes | None], bytes]
"""Returns the error body for a verdict; see hot.refusals."""

_OF_THIS_LEADER = frozenset(
    {
        classification.WRONG_SEQUENCE,
        classification.WRONG_LAST_ID,
        classification.UNKNOWN_LAST,
        classification.CLOSED,
        classification.FULL_ROWS,
        classification.FULL_BYTES,
        classification.FULL_SUBJECT,
    }
)
_UNDECIDED = b"%d" % UNDECIDED
_RESERVED = tuple(prefix.encode() for prefix in RESERVED_PREFIXES)

_UNMET = (classification.WRONG_SEQUENCE, classification.WRONG_LAST_ID)

OTHER_STREAM = "other_stream"
"""Drop reason: Nats-Expected-Stream names another stream."""
RESERVED_SUBJECT = "reserved_subject"
"""Drop reason: only a stream whose subject names the first token would store the message."""
REFUSED = "refused"
"""Drop reason: the message fails a check, other than that of an expectation."""


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """A stream's config as admission to one of its partitions needs it, computed once."""

    name: bytes
    acks_replies: bool
    message_bytes_max: int
    skips_reserved: bool
    acks_envelopes: bool
    ack_head: bytes  # see hot.envelope_acks
    dedup_window_us: int | None
    dedup_ids_max: int
    allows_ttls: bool
    allows_rollups: bool
    scheduled: schedules.ScheduleRules | None = None  # None: messages that are schedules are refused
    competes: bool = False
    subject_max: int = 0  # messages of a subject, if what comes beyond is refused or needs no room; else 0
    refuses_subjects: bool = False  # what comes beyond is refused, unless it is a rollup
    is_only: bool = True  # the stream has no other partition
    refuses_misfits: bool = False  # if values are checked at all; else they are counted
    allows_batches: bool = False  # atomic ones

    @property
    def dedup(self) -> tuple[int | None, int]:
        """The deduplication window in microseconds (None without one), and how many message ids are kept."""
        return self.dedup_window_us, self.dedup_ids_max

    @classmethod
    def of(cls, config: StreamConfig, partition: int = 0) -> AdmissionRules:
        """Return the rules of one partition of a stream."""
        name = config.name.encode()
        return cls(
            name=name,
            acks_replies=config.acks is Acks.REPLY,
            message_bytes_max=config.max_message_bytes,
            skips_reserved=any(map(begins_with_wildcard, config.subjects)),
            acks_envelopes=config.acks is not Acks.NEVER,
            ack_head=envelope_acks.head(name, config.subject_of(partition).encode()),
            dedup_window_us=None if config.dedup_window_ms is None else config.dedup_window_ms * 1_000,
            dedup_ids_max=config.dedup_ids_max,
            allows_ttls=config.allow_message_ttl,
            allows_rollups=config.allow_rollup,
            scheduled=schedules.ScheduleRules.of(config) if config.allows_schedules else None,
            competes=config.competes,
            is_only=config.partitions == 1,
            refuses_misfits=config.schema_check is SchemaCheck.REFUSE,
            allows_batches=config.allows_batches,
            subject_max=config.admitted_per_subject,
            refuses_subjects=config.refuses_new_per_subject,
        )


class Room(NamedTuple):
    """Room of a log below the limits of its stream; -1: any number."""

    rows: int
    size_bytes: int


ANY_ROOM = Room(-1, -1)


class Admission(msgspec.Struct):
    """Rows to append, in order, and the answers that need no append. `dropped`: messages not stored, by reason.

    `errors` are answers that every leader would give, and replies to JetStream's flow control requests. `denials`
    depend on this leader's log: they are true only if no other broker leads. `undelivered`: why messages delivered by a
    JetStream consumer are not stored, by kind: one text for each. `unheard`: refused messages whose publishers get no
    error ack, because they have no reply subject or want no ack; `unheard_why`: subject and reason of the first of
    them, in printable ASCII. `flags`: flags of the batches that the rows become. `lasts_since_rollup`: what `lasts` are
    to be once the rows are written, from the last rollup of all on, if they are counted. For `duplicates`, `has_ids`,
    `rollup_row`, `needs_ids`, `needs_lasts`, `unknown` and `uncounted` see `hot.classification.Classified`.
    """

    rows: MessageGroup
    errors: list[bytes] = []  # msgspec makes a new one for each admission
    denials: bytes = b""
    dropped: dict[str, int] = {}
    unheard: int = 0
    unheard_why: str = ""
    duplicates: list[RefusedMessage] = []
    elsewhere: int = 0  # duplicates of messages in another partition; answered already
    of: MessageGroup | None = None  # the group in which `duplicates` number their rows
    has_ids: bool = False
    flags: int = 0
    lasts_since_rollup: SubjectTable | None = None
    rollup_row: int = -1
    needs_ids: bool = False
    needs_lasts: bool = False
    unknown: list[bytes] = []
    uncounted: list[bytes] = []
    undelivered: dict[bytes, str] = {}
    misaddressed: list[tuple[bytes, bytes]] = []  # subject and reply of messages that name another stream
    misfits: int = 0  # rows that are stored though their values do not fit the schema
    mistyped: int = 0  # refused messages whose values do not fit it
    refusal: bytes = b""  # of an atomic batch that is not stored: the error body

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that are not stored."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count

    def note_unheard(self, count: int, subject: bytes, why: str) -> None:
        """Count refused messages whose publishers get no answer. `subject` and `why` describe the first."""
        if not self.unheard:
            self.unheard_why = f"on {str(subject)[2:-1]}: {why.encode('unicode_escape').decode()}"
        self.unheard += count


def admit(
    group: MessageGroup,
    rules: AdmissionRules,
    *,
    log_end: int,
    log_start: int = 0,
    ids: MessageIds | None = None,
    lasts: LastSequences | None = None,
    is_added: bool = False,
    values: ValueCheck | None = None,
    mistyped: bytes | None = None,
    room: Room = ANY_ROOM,
    counted_from: int = 0,
    verdicts: bytes | None = None,
    is_batch: bool = False,
) -> Admission:
    """Return the rows of `group` for a log from `log_start` to `log_end`. Pure, except that `ids` and `lasts` record
    the rows. `is_added`: an older partition may have earlier messages of a subject. `values`: has made the marks
    `mistyped` (`marks_of`), or counts misfits; None: values are not checked. `room`: of a
    stream that refuses what does not fit. `counted_from`: offset from which on the messages of a subject count.
    `verdicts`: on what concerns schedules in `group`; None: it is checked here, where there is any.
    `is_batch`: an atomic batch, of which all messages become rows, or none; then `refusal` says why.
    """
    table, found_lasts, found_counts = (None,) * 3 if lasts is None else (lasts.table, lasts.found, lasts.found_counts)
    found = classify(
        group, rules.name, rules.acks_replies, rules.message_bytes_max, rules.skips_reserved, log_end,
        rules.acks_envelopes, ids, rules.dedup_window_us is not None, table, log_start, rules.allows_ttls,
        rules.allows_rollups, rules.competes, mistyped, found_lasts, is_added, *room, rules.subject_max, counted_from,
        rules.refuses_subjects, found_counts, rules.is_only, verdicts, _mode(rules, is_batch=is_batch),
    )  # fmt: skip
    if found.needs_schedules:
        group, verdicts = schedules.checked(group, rules.scheduled)
        return admit(
            group, rules, log_end=log_end, log_start=log_start, ids=ids, lasts=lasts, is_added=is_added, values=values,
            mistyped=mistyped, room=room, counted_from=counted_from, verdicts=verdicts, is_batch=is_batch,
        )  # fmt: skip
    if found.needs_ids or found.needs_lasts:
        out = Admission(found.rows, needs_ids=found.needs_ids, needs_lasts=found.needs_lasts)
        out.unknown, out.uncounted = [*dict.fromkeys(found.unknown)], [*dict.fromkeys(found.uncounted)]
        return out
    lasts_since_rollup = found.lasts_since_rollup()
    misfits = 0 if values is None or rules.refuses_misfits else _count(values.of_group(found.rows))
    if found.rows is group and not group.too_large:
        return Admission(group, misfits=misfits)

    explained = 0

    def body(verdict: int, quoted: bytes | None) -> bytes:
        nonlocal explained
        if verdict == classification.UNKNOWN_LAST:
            assert lasts is not None
            return acks.error_body(rules.name, lasts.why_unknown())
        if verdict == classification.ELSEWHERE:
            assert quoted is not None
            return acks.elsewhere_body(rules.name, quoted)
        if verdict == classification.MISTYPED:
            assert values is not None
            mark, _, row = (quoted or b"").partition(b" ")
            reason = values.reason(int(mark)) if mark else ""
            if mark == _UNDECIDED:
                return acks.error_body(rules.name, acks.unavailable(reason))
            if row and explained < limits.SCHEMA_EXPLAINED_PER_GROUP_MAX:
                explained += 1
                reason = values.explained_message(found.group, int(row), int(mark))
            return acks.error_body(rules.name, acks.mistyped(reason))
        return _body(verdict, quoted, rules)

    if is_batch:
        is_wrapped = found.group is not group
        outside = classification.BATCH_OUTSIDE
        refusal = _body(outside, None, rules) if is_wrapped else batch_refusal(found, rules, body)
        if refusal is not None:
            found.take_back(log_end)
            return Admission(MessageGroup(b""), refusal=refusal)
    admission = _admission(group, found, rules, REFUSED, body)
    admission.misfits, admission.lasts_since_rollup = misfits, lasts_since_rollup
    if mistyped is not None:
        refused = (mistyped[one.row] for one in found.refused if one.verdict == classification.MISTYPED)
        admission.mistyped = sum(mark != UNDECIDED for mark in refused)
    return admission


def _mode(rules: AdmissionRules, *, is_batch: bool) -> int:
    if is_batch:
        return classification.IS_BATCH
    return classification.TAKES_BATCHES if rules.allows_batches else classification.REFUSES_BATCHES


def batch_refusal(found: Classified, rules: AdmissionRules, body_of: BodyOf) -> bytes | None:
    """Return the error body for an atomic batch of which a message cannot be stored, by the first one; else None."""
    refused = [*found.refused, *found.duplicates, *found.elsewhere]
    first = min(refused, key=lambda one: one.row, default=None)
    before = found.group.count if first is None else first.row
    if (text := _rollup_mistake(found.group, before)) is not None:
        return acks.error_body(rules.name, acks.rollup_failed(text))
    if first is None:
        if len(found.rows) == found.group.count:
            return None
        is_named = found.other_stream > 0
        text = "a message of the batch is none that is stored"
        return acks.error_body(rules.name, acks.wrong_stream() if is_named else acks.bad_request(text))
    if first.verdict < 0 or first.verdict == classification.ELSEWHERE:
        return acks.error_body(rules.name, acks.batch_duplicate())
    return body_of(first.verdict, refusals.quoted_of(found.group, first)).replace(b"\0", b"%d" % first.number)


def _rollup_mistake(group: MessageGroup, end: int) -> str | None:
    """Return what is wrong with rollups before row `end` of an atomic batch: they may take away none of its own."""
    if b"Nats-Rollup:" not in group.data:
        return None
    fields, subjects_before = HeaderFields(), set()
    for row in range(end):
        block = group.headers(row) or b""
        fields.read(block, 0, len(block))
        rollup = b"" if fields.rollup < 0 else block[fields.rollup : fields.rollup_end]
        if rollup == b"all" and row:
            return "batch rollup all invalid"
        if rollup == b"sub" and group.subject(row) in subjects_before:
            return "batch rollup sub invalid"
        subjects_before.add(group.subject(row))
    return None


def marks_of(group: MessageGroup, values: ValueCheck) -> bytes | None:
    """Return the marks of a group's messages by their values, without their envelopes; None if all fit."""
    opened = unwrap.unwrap(group)
    return values.of_group(group if opened is None else opened.group)


def _count(marks: bytes | None) -> int:
    return 0 if marks is None else len(marks) - marks.count(0)


def refuse_all(group: MessageGroup, rules: AdmissionRules, error: acks.AckError, reason: str) -> Admission:
    """Refuse every message of `group` with `error`, because of what the broker cannot do now."""
    found = close(group, rules.name, rules.acks_replies, rules.skips_reserved, rules.acks_envelopes)
    out = _admission(group, found, rules, reason, lambda _verdict, _quoted: acks.error_body(rules.name, error))
    out.refusal = acks.error_body(rules.name, error)
    return out


def _admission(
    group: MessageGroup, found: Classified, rules: AdmissionRules, reason: str, body_of: BodyOf
) -> Admission:
    row = found.rollup_row
    flags = row_flags(ids=found.has_ids, ttls=found.has_ttls, subject_rollups=found.has_rollups, rollups=row >= 0)
    out = Admission(found.rows, duplicates=found.duplicates, of=found.group, has_ids=found.has_ids, flags=flags)
    out.rollup_row = row
    if found.reserved:
        out.drop(RESERVED_SUBJECT, found.reserved)
    if found.controls:
        out.drop(CONSUMER_CONTROL, found.controls)
    if found.other_stream:
        out.drop(OTHER_STREAM, found.other_stream)
        if rules.acks_replies:
            asked = ((found.group.subject(row), found.group.reply(row)) for row in found.misaddressed)
            out.misaddressed = [(subject, reply) for subject, reply in asked if reply is not None]
    quotes_max = limits.REFUSALS_QUOTED_MAX
    if found.flow_replies is not None:
        out.errors.append(bytes(found.flow_replies))
    if found.refused:
        unmet = sum(one.verdict in _UNMET for one in found.refused) if reason == REFUSED else 0
        if unmet:
            out.drop(UNMET_EXPECTATION, unmet)
        if unmet < len(found.refused):
            out.drop(reason, len(found.refused) - unmet)
        for one in found.undelivered:
            kind = body_of(one.verdict, None)
            if kind not in out.undelivered:
                out.undelivered[kind] = _description(kind, one.number)
        if reason == REFUSED:
            _note_unheard(found, body_of, out)
        if answers := refusals.answers(found.group, found.refused, body_of, quotes_max, rules.ack_head):
            if any(one.verdict in _OF_THIS_LEADER for one in found.refused):
                out.denials = answers
            else:
                out.errors.append(answers)
    if found.elsewhere:
        out.elsewhere = len(found.elsewhere)
        if answers := refusals.answers(found.group, found.elsewhere, body_of, quotes_max, rules.ack_head):
            out.errors.append(answers)
    for message in group.too_large:  # few: larger than one read
        _refuse_too_large(message, rules, out)
    return out


def _refuse_too_large(message: TooLarge, rules: AdmissionRules, out: Admission) -> None:
    """Count one message that is not examined further, and answer it if it is meant for this stream."""
    if rules.skips_reserved and message.subject.startswith(_RESERVED):
        out.drop(RESERVED_SUBJECT)
        return
    block = message.headers or b""
    fields = HeaderFields()
    fields.read(block, 0, len(block))
    is_delivery = message.reply is not None and subjects.is_jetstream_ack(message.reply, 0, len(message.reply))
    if not is_delivery and block[fields.stream : fields.stream_end] not in (b"", rules.name):
        out.drop(OTHER_STREAM)
        return
    out.drop(REFUSED)
    is_unheard = fields.ack >= 0 and block[fields.ack : fields.ack_end] == b"none"
    if message.reply is not None and rules.acks_replies and (is_delivery or not is_unheard):
        error = acks.message_too_large(message.size, rules.message_bytes_max)
        out.errors.append(acks.error_ack(rules.name, message.reply, error))
        if is_delivery:
            out.undelivered.setdefault(_body(classification.TOO_LARGE, None, rules), error.description)
    else:
        error = acks.message_too_large(message.size, rules.message_bytes_max)
        out.note_unheard(1, message.subject, error.description)


def _note_unheard(found: Classified, body_of: BodyOf, out: Admission) -> None:
    unheard = [one for one in found.refused if not one.is_answered]
    if not unheard:
        return
    first = unheard[0]
    why = _description(body_of(first.verdict, refusals.quoted_of(found.group, first)), first.number)
    out.note_unheard(len(unheard), found.group.subject(first.row), why)


def _description(body: bytes, number: int) -> str:
    """Return the description in an error body."""
    told: str = msgspec.json.decode(body.replace(b"\0", b"%d" % number))["error"]["description"]
    return told


def _body(verdict: int, quoted: bytes | None, rules: AdmissionRules) -> bytes:
    """Return the error body of one verdict."""
    match verdict:
        case classification.UNSUPPORTED:
            return acks.error_body(rules.name, acks.bad_request(_unsupported(quoted)))
        case classification.BAD_SUBJECT:
            return acks.error_body(rules.name, acks.bad_request(_subject_mistake(quoted)))
        case classification.BAD_ACK:
            return acks.error_body(rules.name, acks.bad_request("Penstock-Ack must be none, leader or all"))
        case classification.BAD_BASE64:
            return acks.error_body(rules.name, acks.bad_request("Penstock-Key-Base64 is not valid base64"))
        case unwrap.BAD_INBOX:
            text = "ack_inbox is no plain subject that begins with another character than $"
            return acks.error_body(rules.name, acks.bad_request(text))
        case unwrap.BAD_CORRELATION:
            text = f"correlation_id is longer than {limits.CORRELATION_ID_BYTES_MAX} bytes"
            return acks.error_body(rules.name, acks.bad_request(text))
        case unwrap.BAD_POLICY:
            return acks.error_body(rules.name, acks.bad_request("ack_policy must be 0 (leader), 1 (all) or 2 (none)"))
        case unwrap.BAD_ENTRY:
            text = "a header of the envelope cannot be one: a name is ASCII without space and colon, a value one line"
            return acks.error_body(rules.name, acks.bad_request(text))
        case classification.COMPETING:
            text = "this stream or queue group distributes messages at random, so that a retry may reach another log: "
            text += "message ids and expected sequences are not supported"
            return acks.error_body(rules.name, acks.bad_request(text))
        case classification.WRONG_LAST_ID:
            return acks.error_body(rules.name, acks.wrong_last_msg_id())
        case classification.NO_SEQUENCE:
            return acks.error_body(rules.name, acks.no_sequence())
        case classification.BAD_EXPECTED:
            text = "Nats-Expected-Last-Subject-Sequence-Subject names a plain subject, in a stream of one partition"
            return acks.error_body(rules.name, acks.bad_request(text))
        case classification.NO_BATCHES:
            return acks.error_body(rules.name, acks.atomic_disabled())
        case classification.BATCH_OUTSIDE:
            text = "a message in an envelope cannot be part of an atomic batch"
            return acks.error_body(rules.name, acks.bad_request(text))
        case classification.BATCH_LAST_ID:
            return acks.error_body(rules.name, acks.batch_header("Nats-Expected-Last-Msg-Id"))
        case classification.BATCH_SEQUENCE:
            return acks.error_body(rules.name, acks.sequence_in_batch())
        case classification.NO_COUNTERS:
            return acks.error_body(rules.name, acks.counters_disabled())
        case classification.BAD_INCR:
            return acks.error_body(rules.name, acks.increment_invalid())
        case classification.NO_FAST_BATCHES:
            return acks.error_body(rules.name, acks.fast_disabled())
        case classification.UNTRACKED:
            text = "Nats-Expected-Last-Msg-Id needs a stream with a dedup_window_ms, and this one has none"
            return acks.error_body(rules.name, acks.bad_request(text))
        case classification.BAD_TTL:
            return acks.error_body(rules.name, acks.invalid_ttl())
        case classification.TTL_DISABLED:
            return acks.error_body(rules.name, acks.ttl_disabled())
        case classification.BAD_ROLLUP:
            return acks.error_body(rules.name, acks.rollup_failed("rollup value invalid: it is neither sub nor all"))
        case classification.ROLLUP_DISABLED:
            return acks.error_body(rules.name, acks.rollup_failed("rollup not permitted"))
        case classification.NO_SCHEDULES:
            return acks.error_body(rules.name, acks.schedules_disabled())
        case _ if verdict in schedules.REFUSALS:
            return acks.error_body(rules.name, acks.invalid_schedule(*schedules.REFUSALS[verdict]))
        case classification.BAD_TOMBSTONE:
            text = "Penstock-Tombstone must be 1, with an empty payload"
            return acks.error_body(rules.name, acks.bad_request(text))
        case classification.FULL_ROWS:
            return acks.error_body(rules.name, acks.full("messages"))
        case classification.FULL_BYTES:
            return acks.error_body(rules.name, acks.full("bytes"))
        case classification.FULL_SUBJECT:
            return acks.error_body(rules.name, acks.full(acks.PER_SUBJECT))
        case classification.WRONG_SEQUENCE:
            error = acks.wrong_last_sequence(acks.NUMBER)
        case classification.TOO_LARGE:
            error = acks.message_too_large(acks.NUMBER, rules.message_bytes_max)
        case classification.HEADERS_LARGE:
            error = acks.headers_too_large(acks.NUMBER, limits.HEADER_BLOCK_BYTES_MAX)
        case _:
            assert verdict == classification.KEY_LARGE, verdict
            text = f"the key is {acks.NUMBER} bytes long; the limit is {limits.KEY_BYTES_MAX}"
            error = acks.bad_request(text)
    return acks.numbered_body(rules.name, error)


def _unsupported(block: bytes | None) -> str:
    if block is None:
        return "this version of Penstock does not support one of the message's Nats- or Penstock- headers"
    names = ", ".join(name.decode("latin-1") for name in unsupported(block))
    # an answer above nats-server's max_payload would close our connection
    if len(names) > limits.REFUSAL_NAMES_CHARS_MAX:
        names = f"{names[: limits.REFUSAL_NAMES_CHARS_MAX]}…"
    return f"this version of Penstock does not support {names}"


def _subject_mistake(subject: bytes | None) -> str:
    if subject is None:
        return "the subject is not a plain subject"
    try:
        mistake = subject_mistake(subject.decode())
    except UnicodeDecodeError:
        mistake = "the subject is not valid UTF-8"
    assert mistake is not None, subject
    return mistake
