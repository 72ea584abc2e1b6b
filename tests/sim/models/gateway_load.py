"""Clients of JetStream's API: look-ups, ordered readers, writers that compare and set, streams that come and go.

| invariant                                                                     | unless                            |
|-------------------------------------------------------------------------------|-----------------------------------|
| a look-up is never older than an ack or a deletion that was answered before   | permitted losses                  |
| … whichever broker answers: one that leads no more stays silent               | as above                          |
| it has the subject and the value that were sent                               |                                   |
| the next message that matches is the first; a batch leaves none out           | it may be deleted, or replaced    |
| its end counts what is left                                                   | as above                          |
| of writers that expect the same last message of a subject one wins            | permitted losses                  |
| a stream whose creation was answered is found                                 | it may be deleted                 |
| after all faults look-ups are answered                                        |                                   |
| readers get all, in order, once: see `ordered_reading`                        |                                   |

Rules: two streams, made through the API. `plain` loses messages by MSG.DELETE, and is deleted and made again on another
subject. `bucket` keeps the last message of each subject, as key-value buckets do; writers look it up and expect what
they found. Requests land on any broker of the queue group.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any, NamedTuple

import msgspec

from penstock.base.config import StreamConfig
from penstock.messages import AlterStreamRequest, Response
from penstock.testing.errors import ViolationError
from penstock.testing.promises import AckBody
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from penstock.testing.simulation.nats import PublishedMessage
from penstock.testing.simulation.targeted_faults import LOOKED_UP
from tests.sim.checks.refusals import Refusals
from tests.sim.models.api_client import ApiClient, field_of, fields_of, status_of
from tests.sim.models.api_stream import ApiStream
from tests.sim.models.client_state import StreamGeneration
from tests.sim.models.ordered_reading import OrderedReader
from tests.sim.models.requests import SimClient
from tests.sim.models.sending import Sender
from tests.sim.plan.plan import Act, PlannedOperation

_SUBJECTS = 4
_AGAIN_US = 400_000
_WINDOW_NS = 60_000_000_000
_BATCH = 6
_OFTEN, _OFTEN_US, _AT_ONCE = 12, 20_000, 2
_NOT_FOUND = 404
_NO_STREAM = 10059
_SILENT = (408, 500, 503)
_QUIET_US = 30_000_000  # longest wait for a quiet time at the end
PLAIN, BUCKET = "plain", "bucket"


class _Found(NamedTuple):
    """A message of an answer."""

    offset: int
    subject: bytes
    value: bytes


class _Asked(NamedTuple):
    """What was known when a look-up was asked."""

    stream: ApiStream
    what: str
    losses: int
    deleted: frozenset[int]
    live: tuple[int, ...]  # messages that match

    @property
    def is_excused(self) -> bool:
        return self.stream.is_excused or self.stream.losses != self.losses


class GatewayLoad:
    """The clients of one run. `program`: returns a client of the socket API that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        refusals: Refusals,
        brokers: Mapping[int, SimBroker],
        program: Callable[[], SimClient],
        random: Random,
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.API: self._act}
        self._around = around
        self._checks = checks
        self._brokers = brokers
        self._program = program
        self._random = random
        self._sender = Sender(around, checks, refusals, b"_INBOX.acks.")
        self._client = ApiClient(around)
        self._streams: dict[str, ApiStream] = {}
        self._before: list[ApiStream] = []  # that were deleted
        self._readers: dict[str, list[OrderedReader]] = {PLAIN: [], BUCKET: []}
        self._numbers = self._made = 0
        self._answers = 0  # of look-ups
        self._log_ends: dict[tuple[int, int], int] = {}

    def _trace(self, what: str) -> None:
        self._around.trace.add("api", what)

    @property
    def _now_us(self) -> int:
        return self._around.scheduler.now_us

    def _drawn(self, count: int) -> int:
        return int(self._random.random() * count)

    # Streams

    @property
    def generations(self) -> list[StreamGeneration]:
        """The streams that are there."""
        return [
            StreamGeneration(one.history.config, one.history.stream_id)
            for one in self._streams.values()
            if one.is_made and one.history.stream_id and not one.history.is_deleted
        ]

    def create(self) -> None:
        for name in (PLAIN, BUCKET):
            self._create(name)

    def _create(self, name: str) -> None:
        self._made += 1
        subject = f"{name}.g{self._made}.>"
        fields: dict[str, Any] = {"name": name, "subject": subject, "replicas": min(3, len(self._brokers))}
        if name == BUCKET:
            fields["max_messages_per_subject"] = 1
        config = msgspec.convert(fields, StreamConfig)
        self._checks.begin(config)
        stream = self._streams[name] = ApiStream(self._checks.of(subject, 0), is_keyed=name == BUCKET)
        self._ask_to_create(stream)

    def _ask_to_create(self, stream: ApiStream) -> None:
        config = stream.history.config
        request: dict[str, Any] = {
            "name": config.name,
            "subjects": [config.subject],
            "num_replicas": config.replicas,
            "allow_direct": True,
            "duplicate_window": _WINDOW_NS,
            **({"max_msgs_per_subject": 1} if stream.is_keyed else {}),
        }

        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            self._trace(f"created {config.name}: {fields.get('error') or bool(fields)}")
            if not fields or "error" in fields:
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_create(stream))
                return
            if fields["config"]["subjects"] != [config.subject]:
                raise ViolationError(f"{config.name} was made with {config.subject}, and has {fields['config']}")
            self._around.count("streams made through the API")
            stream.is_made = True
            self._program().ask(AlterStreamRequest(name=config.name, changes={"segment_bytes": 4_096}), lambda *_: None)
            self._begin_readers(stream)

        self._client.ask(f"STREAM.CREATE.{config.name}", request, done)

    def _begin_readers(self, stream: ApiStream) -> None:
        one = self._subject(stream, 1)
        self._readers[stream.name] = [
            OrderedReader(
                self._around,
                self._client,
                stream,
                f"{stream.name}{self._made}{'push' if is_push else 'pull'}{len(wanted)}",
                self._random,
                is_push=is_push,
                wanted=wanted,
            )
            for is_push in (True, False)
            for wanted in (b"", one)
        ]

    def _recreate(self) -> None:
        stream = self._streams[PLAIN]
        if not stream.is_made or stream.history.is_deleted:
            return
        stream.history.is_deleted = True
        for reader in self._readers[PLAIN]:
            reader.end()
        self._before.append(stream)
        self._ask_to_remove()

    def _ask_to_remove(self) -> None:
        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            error = fields.get("error", {})
            self._trace(f"removed: {error or bool(fields)}")
            if not fields or error.get("err_code", _NO_STREAM) != _NO_STREAM:
                self._around.scheduler.after(_AGAIN_US, self._ask_to_remove)
                return
            self._around.count("streams deleted through the API")
            self._create(PLAIN)

        self._client.ask(f"STREAM.DELETE.{PLAIN}", None, done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        found = next((one for one in self._streams.values() if one.history.stream_id == stream_id), None)
        if found is None:
            return False
        for one in filter(None, (found.history, found.history.companion)):
            one.is_damaged = one.is_given_up = True
        request = AlterStreamRequest(name=found.name, changes={"allow_unclean_election": True})
        self._program().ask(request, self._unclean)
        return True

    def _unclean(self, response: Response | Any, _raw: bytes) -> None:
        self._trace(f"unclean: {type(response).__name__}")

    def acted(self, broker: SimBroker) -> None:
        """Note after each event of a broker that any message of the bucket may be replaced."""
        stream = self._streams.get(BUCKET)
        if stream is None or broker.node is None or not stream.history.stream_id:
            return
        look = inspector.partition(broker.node, stream.history.stream_id, 0)
        if look is not None and look.log_end > self._log_ends.get((broker.broker_id, broker.run), 0):
            self._log_ends[broker.broker_id, broker.run] = look.log_end
            stream.history.deleting |= set(range(look.log_end))

    # Acts

    def _act(self, operation: PlannedOperation) -> None:
        chance = operation.number
        stream = self._streams[PLAIN if chance % 5 < 3 else BUCKET]
        act = chance // 5 % 100
        if act == 0:
            self._recreate()
        elif act < 4:
            self._cut_a_leaf(chance // 500)
        elif not stream.is_made or stream.history.is_deleted:
            return
        elif act < 40:
            for _ in range(1 + chance // 500 % 3):
                self._send(stream, self._subject(stream, self._drawn(_SUBJECTS)))
        elif act < 50:
            self._compare_and_set(self._streams[BUCKET])
        elif act < 58:
            self._delete(self._streams[PLAIN])
        elif act < 64:
            readers = self._readers[stream.name]
            readers[chance // 500 % len(readers)].delete(rewinds=bool(chance // 5_000 % 2))
        elif act < 67:
            self._look_up_often(stream, self._subject(stream, self._drawn(_SUBJECTS)), _OFTEN)
        else:
            self._look_up(stream, chance // 500)

    def _look_up_often(self, stream: ApiStream, subject: bytes, left: int) -> None:
        """Publish, and look it up as soon as it is acked; a moment later again."""
        if left and not stream.history.is_deleted:
            self._around.count(LOOKED_UP)
            self._send(stream, subject)
            for kind in range(_AT_ONCE):
                self._last(stream, subject, kind, lambda _: None)
            again = partial(self._look_up_often, stream, subject, left - 1)
            self._around.scheduler.after(_OFTEN_US, again)

    def _cut_a_leaf(self, number: int) -> None:
        if leaves := self._around.nats.leaves():
            self._around.count("cut leaf connections")
            self._around.nats.cut(leaves[number % len(leaves)])

    def _subject(self, stream: ApiStream, number: int) -> bytes:
        return stream.history.config.subject.replace(">", str(number)).encode()

    def _send(self, stream: ApiStream, subject: bytes, expected: int | None = None) -> None:
        """Publish a message, once; `expected`: the sequence of the last message of the subject."""
        self._numbers += 1
        name = b"%b/%d/" % (subject, self._numbers)
        name = name.ljust(0 if self._numbers % 4 else 700, b".")
        headers = b""
        if expected is not None:
            headers = b"NATS/1.0\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n" % expected
        message = SentMessage(subject, name, name, headers)
        self._checks.sends(stream.history.config, message)
        stream.sends(message, self._now_us)
        self._sender.send((stream.history,), message, 0, told=partial(self._told, stream, message, expected))

    def _told(self, stream: ApiStream, message: SentMessage, expected: int | None, ack: AckBody) -> None:
        if ack.error is not None:
            if "wrong last sequence" in str(ack.error.get("description", "")):
                self._around.count("writers that lost")
                stream.refuses(message.name, self._now_us)
            return
        stream.acked(message.name, self._now_us)
        if expected is None:
            return
        self._around.count("writers that won")
        other = stream.winners.setdefault((message.subject, expected), message.name)
        if other != message.name and not (stream.is_excused or stream.losses):
            raise ViolationError(
                f"{stream.name}: {other!r} and {message.name!r} both expect {expected}, and are stored"
            )

    def _delete(self, stream: ApiStream) -> None:
        live = stream.live_of(b"")
        if not live or not stream.is_made or stream.history.is_deleted:
            return
        offset = live[-1] if self._drawn(2) else live[self._drawn(len(live))]
        stream.deletes(offset, self._now_us)

        def done(answer: PublishedMessage | None) -> None:
            if fields_of(answer).get("success"):
                self._around.count("messages deleted through the API")
                stream.has_deleted(offset, self._now_us)

        request = {"seq": offset + 1, "no_erase": bool(self._drawn(2))}
        self._client.ask(f"STREAM.MSG.DELETE.{stream.name}", request, done)

    def _compare_and_set(self, stream: ApiStream) -> None:
        """Several writers look up a key, and set it if it is still what they found."""
        if not stream.is_made:
            return
        subject = self._subject(stream, self._drawn(_SUBJECTS))

        def then(found: _Found | None) -> None:
            for _ in range(1 + self._drawn(3)):
                self._send(stream, subject, 0 if found is None else found.offset + 1)

        self._last(stream, subject, self._drawn(2), then)

    # Look-ups

    def _look_up(self, stream: ApiStream, chance: int) -> None:
        subject = self._subject(stream, chance % (_SUBJECTS + 1))  # the last one has no messages
        kind, more = chance // 8 % 8, chance // 64
        if kind < 3:
            self._last(stream, subject, kind, lambda _: None)
        elif kind == 3:
            self._of_sequence(stream, more)
        elif kind < 6:
            self._next(stream, subject if kind == 4 else self._all(stream), more)
        elif kind == 6:
            self._batch(stream, self._all(stream) if more % 2 else subject, more // 2)
        else:
            self._last_of_each(stream)

    def _all(self, stream: ApiStream) -> bytes:
        return stream.history.config.subject.encode()

    def _asked(self, stream: ApiStream, what: str, wanted: bytes, begin: int = 0) -> _Asked:
        self._around.count("look-ups asked")
        live = tuple(stream.live_of(wanted, begin))
        return _Asked(stream, f"{stream.name}: {what}", stream.losses, frozenset(stream.deleted), live)

    def _last(self, stream: ApiStream, subject: bytes, kind: int, then: Callable[[_Found | None], None]) -> None:
        """Look up the last message of a subject; `then` is called with it, or None, unless nobody answers."""
        asked = self._asked(stream, f"last {subject!r}", subject)

        def done(answer: PublishedMessage | None) -> None:
            if (answered := self._answer(asked, answer)) is None:
                return
            found = answered[0] if answered else None
            if found is not None and found.subject != subject:
                raise ViolationError(f"{asked.what}: {found.subject!r} is answered")
            least = max(asked.live, default=-1)
            if not asked.is_excused and (found is None or found.offset < least) and least >= 0:
                raise ViolationError(f"{asked.what}: it was at offset {least}, and {found} is answered")
            then(found)

        operations = ("STREAM.MSG.GET", "DIRECT.GET", "DIRECT.GET")
        where = f"{operations[kind]}.{stream.name}"
        if kind == 1:
            self._client.ask(f"{where}.{subject.decode()}", None, done)
        else:
            self._client.ask(where, {"last_by_subj": subject.decode()}, done)

    def _of_sequence(self, stream: ApiStream, chance: int) -> None:
        offset = chance % (max(stream.history.known, default=0) + 2)
        asked = self._asked(stream, f"at {offset}", b"", offset)

        def done(answer: PublishedMessage | None) -> None:
            found = self._answer(asked, answer)
            if found is None or asked.is_excused:
                return
            if not found and offset in asked.live and stream.is_live(offset):
                raise ViolationError(f"{asked.what}: it is there, and not found")
            if found and found[0].offset != offset:
                raise ViolationError(f"{asked.what}: {found} is answered")

        operation = "DIRECT.GET" if chance % 2 else "STREAM.MSG.GET"
        self._client.ask(f"{operation}.{stream.name}", {"seq": offset + 1}, done)

    def _next(self, stream: ApiStream, wanted: bytes, chance: int) -> None:
        begin = chance % (max(stream.history.known, default=0) + 2)
        asked = self._asked(stream, f"next {wanted!r} from {begin}", wanted, begin)

        def done(answer: PublishedMessage | None) -> None:
            found = self._answer(asked, answer)
            if found is not None:
                self._check_run(asked, wanted, begin, found, is_whole=not found)

        operation = "DIRECT.GET" if chance % 2 else "STREAM.MSG.GET"
        request = {"seq": begin + 1, "next_by_subj": wanted.decode()}
        self._client.ask(f"{operation}.{stream.name}", request, done)

    def _batch(self, stream: ApiStream, wanted: bytes, chance: int) -> None:
        begin = chance % (max(stream.history.known, default=0) + 2)
        asked = self._asked(stream, f"batch {wanted!r} from {begin}", wanted, begin)
        lost = self._around.nats.lost

        def done(answers: list[PublishedMessage]) -> None:
            if not answers or self._around.nats.lost != lost:
                return
            status = status_of(answers[-1])
            if status[:3] not in ("204", "404"):
                self._refused(asked, int(status[:3]), 0, status)
                return
            found = [self._found(one) for one in answers[:-1]]
            self._answered(asked, found)
            self._check_run(asked, wanted, begin, found, is_whole=len(found) < _BATCH)
            if status.startswith("204") and not asked.is_excused:
                left = int(field_of(answers[-1], "Nats-Num-Pending"))
                end = found[-1].offset if found else begin - 1
                least = sum(one > end for one in asked.live if stream.is_live(one))
                most = stream.sent_count(wanted, end, asked.deleted)
                if not least <= left <= most:
                    raise ViolationError(f"{asked.what}: {left} are left behind {end}; it is {least} to {most}")
                self._around.count("batch look-ups")

        request = {"seq": begin + 1, "batch": _BATCH, "next_by_subj": wanted.decode()}
        self._client.ask_all(f"DIRECT.GET.{stream.name}", request, lambda one: status_of(one) != "", done)

    def _last_of_each(self, stream: ApiStream) -> None:
        wanted = self._all(stream)
        asked = self._asked(stream, "last of each", wanted)
        lasts: dict[bytes, int] = {}
        for offset in asked.live:
            lasts[stream.subject(stream.history.known[offset])] = offset
        lost = self._around.nats.lost

        def done(answers: list[PublishedMessage]) -> None:
            if not answers or self._around.nats.lost != lost:
                return
            status = status_of(answers[-1])
            if status[:3] not in ("204", "404"):
                self._refused(asked, int(status[:3]), 0, status)
                return
            found = [self._found(one) for one in answers[:-1]]
            self._answered(asked, found)
            told = {one.subject: one.offset for one in found}
            if len(told) < len(found):
                raise ViolationError(f"{asked.what}: a subject is answered twice: {found}")
            for subject, offset in lasts.items():
                if told.get(subject, -1) < offset and not asked.is_excused:
                    text = f"{subject!r} was at offset {offset}, and {told.get(subject)} is answered"
                    raise ViolationError(f"{asked.what}: {text}")

        request = {"multi_last": [wanted.decode()], "batch": 100}
        self._client.ask_all(f"DIRECT.GET.{stream.name}", request, lambda one: status_of(one) != "", done)

    def _check_run(self, asked: _Asked, wanted: bytes, begin: int, found: list[_Found], *, is_whole: bool) -> None:
        """Check that messages are all from `begin` on; `is_whole`: up to the end."""
        if asked.is_excused:
            return
        offsets = [one.offset for one in found]
        if offsets != sorted({*offsets}) or (offsets and offsets[0] < begin):
            raise ViolationError(f"{asked.what}: {offsets} are answered")
        wrong = [one for one in found if not asked.stream.matches(one.subject, wanted)]
        if wrong:
            raise ViolationError(f"{asked.what}: {wrong} do not match")
        end = max(asked.live, default=-1) + 1 if is_whole else offsets[-1]
        left_out = [one for one in asked.live if one < end and one not in offsets and asked.stream.is_live(one)]
        if left_out:
            raise ViolationError(f"{asked.what}: {offsets} are answered, without {left_out}")

    # Answers

    def _answer(self, asked: _Asked, answer: PublishedMessage | None) -> list[_Found] | None:
        """Return the message that is answered, if there is one; None: nobody has answered."""
        if answer is None:
            self._around.count("look-ups without an answer")
            return None
        if answer.headers:
            if (status := status_of(answer)) and not status.startswith("404"):
                self._refused(asked, int(status[:3]), 0, status)
                return None
            found = [] if status else [self._found(answer)]
        else:
            fields = fields_of(answer)
            error = fields.get("error")
            if error is not None and (error["code"] != _NOT_FOUND or error["err_code"] == _NO_STREAM):
                self._refused(asked, error["code"], error["err_code"], error["description"])
                return None
            message = fields.get("message", {})
            found = []
            if message:
                value = base64.b64decode(message.get("data", ""))
                found = [_Found(message["seq"] - 1, message["subject"].encode(), value)]
        self._answered(asked, found)
        return found

    @staticmethod
    def _found(message: PublishedMessage) -> _Found:
        offset = int(field_of(message, "Nats-Sequence")) - 1
        return _Found(offset, field_of(message, "Nats-Subject").encode(), message.value)

    def _answered(self, asked: _Asked, found: list[_Found]) -> None:
        self._answers += 1
        self._around.count("look-ups answered")
        for one in found:
            if not asked.stream.history.is_deleted:
                asked.stream.reads(one.offset, one.subject, one.value, asked.what)
            if one.offset in asked.deleted and not asked.is_excused:
                raise ViolationError(f"{asked.what}: {one} is answered, and was deleted before")

    def _refused(self, asked: _Asked, code: int, err_code: int, text: str) -> None:
        """Check a refusal: it must be one of the moment."""
        self._around.count("look-ups refused")
        self._trace(f"{asked.what}: {code} {text}")
        if code not in _SILENT and err_code != _NO_STREAM:
            raise ViolationError(f"{asked.what}: it is refused for good: {code} {err_code} {text}")
        if err_code == _NO_STREAM and not asked.is_excused:
            raise ViolationError(f"{asked.what}: the stream was made, and is not found")

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names what is not there yet: an ack, an answer, the end of a reader."""
        acks = {id(one.history): one.history.acks for one in self._streams.values()}  # one may be made anew meanwhile
        answers, until_us = self._answers, self._now_us + _QUIET_US
        again: set[str] = set()  # streams whose readers read all once more, while nothing changes

        def left() -> str:
            waiting = []
            for name, stream in self._streams.items():
                history = stream.history
                if any(is_stuck(one) or one.is_damaged for one in filter(None, (history, history.companion))):
                    continue
                if not stream.is_made or history.is_deleted:
                    waiting.append(f"{name} is not made")
                elif history.acks <= acks.get(id(history), 0) and not (history.damaged or history.is_given_up):
                    self._send(stream, self._subject(stream, 1))
                    waiting.append(f"{name} stores nothing")
                elif stream.is_excused:
                    continue
                elif behind := [one.name for one in self._readers[name] if not one.has_all]:
                    waiting.append(f"{', '.join(behind)} have not all")
                elif self._answers <= answers:
                    self._last(stream, self._subject(stream, 1), 0, lambda _: None)
                    waiting.append(f"look-ups in {name} are not answered")
                elif name not in again and self._now_us < until_us:
                    waiting.append(f"{name} is not quiet")
                    if stream.is_quiet(self._now_us):
                        again.add(name)
                        for reader in self._readers[name]:
                            reader.delete(rewinds=True)
            return ", ".join(waiting)

        return left

    def check(self) -> None:
        """After the audit."""
        for stream in self._streams.values():
            stream.check()
