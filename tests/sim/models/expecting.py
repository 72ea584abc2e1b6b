"""Model of concurrent writers of the same subjects: expectations, message ids, deletions, and streams that get full.

| invariant                                                                          | checked at                    |
|------------------------------------------------------------------------------------|-------------------------------|
| the expectation of a stored message was true of the committed log before it        | an ack; after the audit       |
| … so no two messages are stored with the same expectation, without a deletion      | as above                      |
| a refused message is not stored                                                    | see `refusals`                |
| an expectation of a message whose deletion was answered before is refused          | an ack; after the audit       |
| a refusal names as the last message neither such a one nor the one that it expects | an error                      |
| a leader's log never has more live rows than max_messages, or bytes than max_bytes | every event of a broker       |
| … nor does any replica, up to its committed_end                                    | every event of a broker       |
| with discard_new_per_subject a subject never gets more messages than it may        | as the first                  |
| with a limit by subject that hides, readers never see more than max_messages       | every event of a broker       |
| what a rollup replaces is hidden, and nothing else: see `checks/rollups`           | every event of a broker       |
| a message whose expectation is true is stored, also after all failovers            | the end: see `waits_for`      |

Rules: writers use what they were told last: by acks, by refusals (which name the last sequence) and by answered
deletions. Several of them write at the same time, with the same expectation. Some are late: they expect a message that
was deleted. When another broker begins to lead, writers come at once, and its disk may be slow. Two streams: one
without limits, and one that discards new messages at a limit in messages, in bytes or of a few for each subject. In one
of these writers replace the messages of their subjects though it is full. With one in bytes it may stay full without a
message: batches that only cover offsets have bytes, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteMessagesRequest,
    DeleteMessagesResponse,
    Response,
)
from penstock.testing.errors import ViolationError
from penstock.testing.promises import AckBody
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from tests.sim.checks.refusals import Refusals
from tests.sim.checks.rollups import Rollups
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import SimClient
from tests.sim.models.sending import TRIES_MAX, Sender
from tests.sim.plan.plan import Act, PlannedOperation

_SUBJECTS = 4  # few, so that writers meet
_ROWS_MIN, _ROWS_MAX = 6, 20
_BYTES_MAX = 16_384
_WINDOW_MS = 10**12  # of message ids: longer than any clock change
_AGAIN_US = 400_000
_AT_ONCE_US = (1, 3_000, 40_000, 400_000, 1_500_000)  # after another broker has begun to lead
_WRONG_SEQUENCE = re.compile(r"wrong last sequence: (\d+)")
_HOWS, _LATE, _KNOWING = 20, 0, 11  # ways to write: see `_expectation`
_DELETING = 0.6  # of all runs: a deletion makes a broker forget what it knows of subjects
_ROLLING = 0.4  # of all runs: in the stream without limits rollups come, too
_SLOW_US = 1_000_000  # duration of slow disk work of some new leaders
_OFFSET_MAX = 2**62
_NONE = -1  # offset of the last message of a subject without messages


class _Wanted(NamedTuple):
    """What a message expects. `last` of a subject: an offset, or _NONE; `log_end`; `last_id`: name of the message."""

    sent_us: int
    last: int | None = None
    log_end: int | None = None
    last_id: bytes | None = None


@dataclass(slots=True)
class _Deletion:
    """A deletion that was asked for; `answered_us` None: nobody knows whether it was carried out."""

    asked_us: int
    answered_us: int | None = None


@dataclass(slots=True)
class _Stream:
    """One stream, and what its writers believe."""

    history: PartitionHistory
    stream_id: int = 0  # 0: its creation is not answered yet
    lasts: dict[bytes, int] = field(default_factory=dict)  # subject → offset of its last message
    log_end: int = 0
    last_id: bytes = b""
    deleted: dict[bytes, int] = field(default_factory=dict)  # subject → last message of it that was deleted
    deletions: dict[int, _Deletion] = field(default_factory=dict)  # by offset
    wanted: dict[bytes, _Wanted] = field(default_factory=dict)  # by name of the message
    rollups: Rollups = field(default_factory=Rollups)

    @property
    def config(self) -> StreamConfig:
        return self.history.config

    @property
    def is_excused(self) -> bool:
        """True if messages or marks may be lost."""
        history = self.history
        return bool(history.is_damaged or history.is_given_up or history.cuts or history.has_lost_marks)

    def is_deleted(self, offset: int, at_us: int) -> bool:
        """True if the deletion of a message was answered before that time."""
        deletion = self.deletions.get(offset)
        return deletion is not None and deletion.answered_us is not None and deletion.answered_us < at_us

    def may_be_deleted(self, offset: int, acked_us: int | None) -> bool:
        """True if a message may have been deleted before that time; None: at any time."""
        deletion = self.deletions.get(offset)
        return deletion is not None and (acked_us is None or deletion.asked_us <= acked_us)

    def is_rolled_up(self, offset: int, end: int, subject: bytes, told: Mapping[bytes, bytes]) -> bool:
        """True if a rollup before `end` may have taken a message on that subject."""
        return self.config.allow_rollup and self.rollups.may_take(offset, end, subject, self.history.known, told)

    @property
    def replaces(self) -> bool:
        """True if a limit by subject hides messages."""
        return self.config.subject_limit is not None

    @property
    def _gone(self) -> set[int]:
        return {offset for offset, one in self.deletions.items() if one.answered_us is not None}

    @property
    def live(self) -> list[int]:
        """Offsets of the messages that are known, and whose deletion was not answered."""
        return sorted(self.history.known.keys() - self._gone)

    @property
    def in_the_way(self) -> list[int]:
        """Offsets of messages that may fill the stream: live ones, else those that refusals have named."""
        return self.live or sorted({one for one in self.lasts.values() if one != _NONE} - self._gone)

    def subject_of(self, offset: int, told: Mapping[bytes, bytes]) -> bytes:
        """Return the subject of a message that is known, or that a refusal has named."""
        if (name := self.history.known.get(offset)) is not None:
            return told[name]
        return next(subject for subject, last in self.lasts.items() if last == offset)

    def live_of(self, subject: bytes, told: Mapping[bytes, bytes]) -> int:
        """Return the last one of them on a subject; _NONE: there is none."""
        known = self.history.known
        return max((one for one in self.live if told[known[one]] == subject), default=_NONE)


class Expecting:
    """The writers of one run. `program`: returns a client that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        refusals: Refusals,
        brokers: Mapping[int, SimBroker],
        program: Callable[[], SimClient],
        random: Random,
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.EXPECT: self._act}
        self._around = around
        self._checks = checks
        self._refusals = refusals
        self._brokers = brokers
        self._program = program
        self._random = random
        self._sender = Sender(around, checks, refusals, b"_INBOX.expecting.")
        self._streams: list[_Stream] = []
        self._numbers = 0
        self._deletes = random.random() < _DELETING  # from the stream that does not get full
        self._epochs: dict[int, int] = {}  # stream id → the newest epoch in which a broker has led
        self._looks: dict[tuple[int, int, int], inspector.FullLook] = {}  # (broker, its run, stream id) → last look

    def _trace(self, what: str) -> None:
        self._around.trace.add("expecting", what)

    @property
    def _now_us(self) -> int:
        return self._around.scheduler.now_us

    def _drawn(self, count: int) -> int:
        return int(self._random.random() * count)

    # The streams

    @property
    def generations(self) -> list[StreamGeneration]:
        """The streams that are there."""
        return [StreamGeneration(one.config, one.stream_id) for one in self._streams if one.stream_id]

    def create(self) -> None:
        """Create both streams; retried until it is answered."""
        limit: dict[str, Any] = {"max_messages": _ROWS_MIN + self._drawn(_ROWS_MAX - _ROWS_MIN)}
        kind = self._drawn(6)
        if kind < 2:
            limit = {"max_bytes": _BYTES_MAX}
        elif kind == 2:
            limit = {"max_messages_per_subject": 1 + self._drawn(3), "discard_new_per_subject": True}
        elif kind == 3:
            limit = {"max_messages_per_subject": 1 + self._drawn(3), "max_messages": _SUBJECTS - 1}
        rolls = {"allow_rollup": True} if self._random.random() < _ROLLING else {}
        of_names: dict[str, dict[str, Any]] = {"expected": rolls, "full": {"discard": "new", **limit}}
        for name, more in of_names.items():
            fields = {
                "name": name,
                "subject": f"{name}.>",
                "replicas": min(3, len(self._brokers)),
                "segment_bytes": 4_096,
                "dedup_window_ms": _WINDOW_MS,
                **more,
            }
            config = msgspec.convert(fields, StreamConfig)
            self._checks.begin(config)
            stream = _Stream(self._checks.of(config.subject, 0))
            self._streams.append(stream)
            self._ask_to_create(stream)

    def _ask_to_create(self, stream: _Stream) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"create {stream.config.name}: {kind_of(response)}")
            if not isinstance(response, CreateStreamResponse):
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_create(stream))
                return
            stream.stream_id = int(response.stream.stream_id)
            self._checks.created[stream.stream_id] = stream.history

        self._program().ask(CreateStreamRequest(config=stream.config, timeout_ms=3_000), done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        stream = next((one for one in self._streams if one.stream_id == stream_id), None)
        if stream is None:
            return False
        for one in filter(None, (stream.history, stream.history.companion)):
            one.is_damaged = one.is_given_up = True
        request = AlterStreamRequest(name=stream.config.name, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    # Acts

    def _act(self, operation: PlannedOperation) -> None:
        chance = operation.number
        stream = self._streams[chance % 2]
        if not stream.stream_id:
            return
        act = chance // 2 % 32
        if act < 20:
            self._write(stream, 1 + chance // 64 % 3)
        elif act < 29:
            if self._deletes or stream.config.refuses_new:
                self._delete(stream, 1 + chance // 64 % 2)
        else:
            self._append(stream, 1 + chance // 64 % 3)

    def _subject(self, stream: _Stream, number: int) -> bytes:
        return stream.config.subject.replace(">", str(number)).encode()

    def _named(self, stream: _Stream, subject: bytes, headers: bytes = b"") -> SentMessage:
        self._numbers += 1
        name = b"%b/%d/" % (subject, self._numbers)
        message = SentMessage(subject, name, name.ljust(0 if self._numbers % 5 else 700, b"."), headers)
        message = message._replace(name=message.value or name)  # a reader knows it by its value
        self._checks.sends(stream.config, message)
        return message

    def _write(self, stream: _Stream, writers: int) -> None:
        """Several writers of a subject write at the same time, and know the same."""
        subject = self._subject(stream, self._drawn(_SUBJECTS))
        how = self._drawn(_HOWS)
        for _ in range(writers):
            self._write_one(stream, subject, how)

    def _write_at_once(self, stream: _Stream) -> None:
        """Write to each subject: a late writer, and one that knows."""
        for number in range(_SUBJECTS):
            for how in (_LATE, _KNOWING):
                self._write_one(stream, self._subject(stream, number), how)

    def _write_one(self, stream: _Stream, subject: bytes, how: int) -> None:
        wanted, fields = self._expectation(stream, subject, how)
        message = self._named(stream, subject)
        has_id = self._drawn(3) == 0
        if has_id:
            fields += b"Nats-Msg-Id: %b\r\n" % message.name.rstrip(b".")
        if stream.config.allow_rollup and (kind := {0: b"all", 1: b"sub", 2: b"sub"}.get(self._drawn(12))) is not None:
            fields += b"Nats-Rollup: %b\r\n" % kind
            stream.rollups.kinds[message.name] = kind
            if kind == b"all":
                stream.history.truncating = _OFFSET_MAX  # it may raise the log start
        if fields:
            message = message._replace(headers=b"NATS/1.0\r\n%b\r\n" % fields)
        stream.wanted[message.name] = wanted
        tries = TRIES_MAX if has_id and self._drawn(2) else 0
        self._sender.send((stream.history,), message, tries, told=partial(self._told, stream, message, bool(tries)))

    def _expectation(self, stream: _Stream, subject: bytes, how: int) -> tuple[_Wanted, bytes]:
        """Return what a writer expects, and its headers."""
        if how < 12:
            last = stream.lasts.get(subject, _NONE)
            if how < 3:  # a late writer
                last = stream.deleted.get(subject, last)
            return _Wanted(self._now_us, last=last), b"Nats-Expected-Last-Subject-Sequence: %d\r\n" % (last + 1)
        if how < 15:
            end = stream.log_end
            return _Wanted(self._now_us, log_end=end), b"Nats-Expected-Last-Sequence: %d\r\n" % end
        if how < 17 and stream.last_id:
            told_id = stream.last_id
            return _Wanted(self._now_us, last_id=told_id), b"Nats-Expected-Last-Msg-Id: %b\r\n" % told_id
        return _Wanted(self._now_us), b""

    def _told(self, stream: _Stream, message: SentMessage, is_sent_again: bool, ack: AckBody) -> None:
        """Take an answer as a writer does: an ack, or an error that names the last sequence."""
        if ack.error is None:
            if ack.offset is None:
                return
            offset, subject = ack.offset, message.subject
            wants = stream.wanted[message.name]
            is_expecting = (wants.last, wants.log_end, wants.last_id) != (None, None, None)
            self._around.count("messages as expected", is_expecting)
            self._around.count("messages that a subject may have", stream.config.refuses_new_per_subject)
            self._around.count("messages that replace others", stream.replaces)
            stream.lasts[subject] = max(offset, stream.lasts.get(subject, _NONE))
            if offset >= stream.log_end:
                has_id = b"Nats-Msg-Id" in message.headers
                stream.log_end, stream.last_id = offset + 1, message.name.rstrip(b".") if has_id else b""
            self._check(stream, message.name, self._now_us)
            return
        text = str(ack.error.get("description", ""))
        self._around.count("messages beyond a limit", text.startswith("maximum "))
        if (found := _WRONG_SEQUENCE.search(text)) is None:
            return
        self._around.count("messages not as expected")
        wants, last = stream.wanted[message.name], int(found.group(1)) - 1
        if wants.log_end is not None:
            stream.log_end = last + 1
            return
        stream.lasts[message.subject] = last
        if stream.is_excused:
            return
        what = f"{stream.history.name()}: {message.name!r}"
        if last == wants.last and not is_sent_again:
            raise ViolationError(f"{what} expects {last}, and was refused because of it: {text}")
        if stream.is_deleted(last, wants.sent_us):
            text = f"{what} was refused because of {last}, which was deleted before, at"
            raise ViolationError(f"{text} {stream.deletions[last].answered_us} us; sent at {wants.sent_us} us")

    def _delete(self, stream: _Stream, count: int) -> None:
        """Delete messages, most of them the last ones of their subjects."""
        told = self._checks.told_subjects
        offsets: set[int] = set()
        for _ in range(count):
            last = stream.live_of(self._subject(stream, self._drawn(_SUBJECTS)), told)
            if last >= 0:
                offsets.add(last)
        if (live := stream.live) and self._drawn(3) == 0:
            offsets.add(live[0])
        if offsets:
            self._ask_to_delete(stream, tuple(sorted(offsets)), is_secure=self._drawn(4) == 0)

    def _ask_to_delete(self, stream: _Stream, offsets: tuple[int, ...], *, is_secure: bool) -> None:
        told, history = self._checks.told_subjects, stream.history
        subjects = {stream.subject_of(one, told): one for one in offsets}
        history.deleting |= set(offsets)
        for one in offsets:
            stream.deletions.setdefault(one, _Deletion(self._now_us))

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"deleted {offsets} of {stream.config.name}: {kind_of(response)}")
            if not isinstance(response, DeleteMessagesResponse):
                return
            self._around.count("deleted messages", response.deleted)
            for one in offsets:
                if one not in response.missing:
                    stream.deletions[one].answered_us = self._now_us
            for subject, one in subjects.items():
                stream.deleted[subject] = one
                if stream.lasts.get(subject) == one:
                    stream.lasts[subject] = stream.live_of(subject, told)
                for how in (_LATE, _KNOWING):
                    self._write_one(stream, subject, how)

        request = DeleteMessagesRequest(
            stream_id=StreamId(stream.stream_id), offsets=tuple(map(Offset, offsets)), is_secure=is_secure
        )
        self._program().ask_leader(stream.stream_id, 0, request, done)

    def _append(self, stream: _Stream, count: int) -> None:
        history = stream.history
        messages = [self._named(stream, self._subject(stream, self._drawn(_SUBJECTS))) for _ in range(count)]
        names = [one.name for one in messages]
        if stream.config.refuses_new_per_subject:
            stream.wanted |= {name: _Wanted(self._now_us) for name in names}
        group = MessageGroup.of([one.subject for one in messages], names)
        data, _ = codec.encode(group, 0, count, base_offset=0, timestamp_us=0, leader_epoch=0)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"appended to {stream.config.name}: {kind_of(response)}")
            if isinstance(response, RemoteError):
                self._around.count("appends beyond a limit", response.code == ErrorCode.STREAM_FULL)
                self._refusals.append_refused(history, names, response)
            if isinstance(response, AppendResponse):
                for offset, name in enumerate(names, response.base_offset):
                    self._checks.promised(history, offset, response.leader_epoch, name, fsynced=response.fsynced)

        request = AppendRequest(stream_id=StreamId(stream.stream_id), partition=PartitionId(0))
        self._program().ask_leader(stream.stream_id, 0, request, done, bytes(data))

    # Checks

    def _check(self, stream: _Stream, name: bytes, acked_us: int | None = None) -> None:
        """Check that what a stored message expects was true of what is known of the log before it."""
        history, wants = stream.history, stream.wanted.get(name)
        offset = history.places.get(name)
        if wants is None or offset is None or history.known.get(offset) != name or stream.is_excused:
            return
        if mistake := self._mistake(stream, offset, wants, acked_us):
            raise ViolationError(f"{history.name()}: {name!r} is stored at {offset}, and {mistake}")

    def _mistake(self, stream: _Stream, offset: int, wants: _Wanted, acked_us: int | None) -> str:
        known, told, deletions = stream.history.known, self._checks.told_subjects, stream.deletions
        if wants.log_end is not None and wants.log_end != offset:
            return f"expects the log to end at {wants.log_end}"
        before = known.get(offset - 1)
        if wants.last_id is not None and before is not None and before.rstrip(b".") != wants.last_id:
            return f"expects {wants.last_id!r} before it; there is {before!r}"
        subject = told[known[offset]]
        most = stream.config.admitted_per_subject if stream.config.refuses_new_per_subject else offset + 1
        there = [one for one in range(offset) if one in known and told[known[one]] == subject]
        if stream.replaces:
            there = there[-stream.config.admitted_per_subject :]  # earlier ones may be hidden
        there = [
            one
            for one in there
            if not (stream.may_be_deleted(one, acked_us) or stream.is_rolled_up(one, offset, subject, told))
        ]
        if len(there) >= most:
            return f"its subject has {there} before it"
        if wants.last is None:
            return ""
        if wants.last >= offset:
            return f"expects {wants.last} as the last message of its subject, which comes later"
        if wants.last >= 0:
            expected = known.get(wants.last)
            if expected is not None and told[expected] != subject:
                return f"expects {wants.last} as the last message of its subject, and that is {expected!r}"
            if stream.is_deleted(wants.last, wants.sent_us):
                at_us = deletions[wants.last].answered_us
                return f"expects {wants.last}, whose deletion was answered at {at_us} us, before it came"
        for one in there:
            if one > wants.last:
                return f"expects {wants.last} as the last message of its subject, and that was {one}"
        return ""

    def check(self) -> None:
        """After the audit: check all that is stored, acked or not."""
        for stream in self._streams:
            for name in stream.wanted:
                self._check(stream, name)
            self._around.count("expectations that are stored", len(stream.wanted.keys() & stream.history.places.keys()))

    def acted(self, broker: SimBroker) -> None:
        """Check a broker after each of its events."""
        if broker.node is None:
            return
        for stream in self._streams:
            look = inspector.fullness(broker.node, stream.history.stream_id, 0)
            if look is None:
                continue
            key = broker.broker_id, broker.run, stream.stream_id
            before = self._looks.get(key)
            if before is not None and look[:-1] == before[:-1] and look.hidden is before.hidden:
                continue
            self._looks[key] = look
            if stream.replaces or stream.config.allow_rollup:
                stream.history.deleting |= set(range(look.log_end))  # a later one of its subject may hide any of them
            if look.is_leader and look.leader_epoch > self._epochs.get(stream.stream_id, 0):
                self._epochs[stream.stream_id] = look.leader_epoch
                if self._drawn(3) == 0:
                    self._slow_down(broker)
                for after_us in _AT_ONCE_US:
                    self._around.scheduler.after(after_us, partial(self._write_at_once, stream))
            if not stream.is_excused and stream.config.allow_rollup:
                self._check_rollups(stream, broker, look)
            if not stream.is_excused:
                self._check_fullness(stream, broker, look, before)

    def _slow_down(self, broker: SimBroker) -> None:
        """Have the disk work slowly for a while: what a new leader reads before it stores takes its time."""
        broker.disk.is_slow = True

        def end() -> None:
            broker.disk.is_slow = False

        self._around.scheduler.after(_SLOW_US, end)

    def _check_rollups(self, stream: _Stream, broker: SimBroker, look: inspector.FullLook) -> None:
        rollups, history = stream.rollups, stream.history
        before = rollups.replaced
        if mistake := rollups.mistake(look, history, self._checks.told_subjects, stream.deletions):
            raise ViolationError(f"{history.name()}: {broker.name} {mistake}")
        self._around.count("messages that a rollup replaced", rollups.replaced - before)

    def _check_fullness(
        self, stream: _Stream, broker: SimBroker, look: inspector.FullLook, before: inspector.FullLook | None
    ) -> None:
        config, history = stream.config, stream.history
        if config.max_messages is not None and stream.replaces:
            shown = look.visible_end - look.log_start - look.hidden.count_in(look.log_start, look.visible_end)
            if shown > config.max_messages:
                text = f"{history.name()}: {broker.name} shows {shown} messages up to {look.visible_end}"
                raise ViolationError(f"{text}, and {config.max_messages} is the limit")
            self._around.count("times that a log of replaced ones was full", shown == config.max_messages)
        elif config.max_messages is not None:
            deleting = sum(look.log_start <= one < look.committed_end for one in history.deleting)
            live = look.committed_end - look.log_start - deleting
            if live > config.max_messages:
                text = f"{history.name()}: {broker.name} has {live} messages up to {look.committed_end}"
                raise ViolationError(f"{text}, and {config.max_messages} is the limit")
            live = look.log_end - look.log_start - look.hidden.count_in(look.log_start, look.log_end)
            if look.is_leader and look.is_exact and live > config.max_messages:
                text = f"{history.name()}: {broker.name}, who leads, has {live} messages up to {look.log_end}"
                raise ViolationError(f"{text}, and {config.max_messages} is the limit")
            self._around.count("times that a log was full", look.is_leader and live == config.max_messages)
        if config.max_bytes is not None and before is not None and look.is_leader and before.is_leader:
            has_stored = look.log_end > before.log_end and look.leader_epoch == before.leader_epoch
            # The bytes of live rows are an estimate, which changes when a segment is sealed or rewritten.
            if has_stored and look.size_bytes > config.max_bytes + config.segment_bytes:
                text = f"{history.name()}: {broker.name}, who leads, has {look.size_bytes} bytes"
                raise ViolationError(f"{text}, and {config.max_bytes} is the limit")

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names a stream that has not stored a message as its writer expects it."""
        begun = [one.history.acks for one in self._streams]

        def left() -> str:
            waiting = []
            for stream, acks in zip(self._streams, begun, strict=True):
                history = stream.history
                pair = list(filter(None, (history, history.companion)))
                if any(is_stuck(one) or one.is_damaged or one.damaged for one in pair):
                    continue
                if stream.config.max_bytes is not None and not stream.live:
                    continue  # what only covers offsets has bytes, too
                if stream.config.refuses_new_per_subject and not stream.live:
                    continue  # what was stored without an answer may have each of the subjects
                if history.acks <= acks:
                    if stream.stream_id and stream.config.refuses_new and (full := stream.in_the_way):
                        self._ask_to_delete(stream, tuple(full[:3]), is_secure=True)
                    if stream.stream_id:
                        self._write_one(stream, self._subject(stream, self._drawn(_SUBJECTS)), _KNOWING)
                    waiting.append(f"{stream.config.name} stores nothing as expected")
            return ", ".join(waiting)

        return left
