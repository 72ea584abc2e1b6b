"""Model of the schema registry: registers and forgets schemas of one checked stream, lists them, and publishes there.

| invariant                                                                       | checked at                     |
|---------------------------------------------------------------------------------|--------------------------------|
| a version never has two texts, and a text never two numbers                     | an answer, a list              |
| versions of a pattern are 1 to n, all compatible unless forced                  | a list                         |
| an acked version is listed, with its text; a forgotten or refused one is not    | a list, and the end            |
| a value that does not fit is not stored by a leader that began after the schema | an ack, a read (see `checks`)  |
| a value that fits is never refused as one that does not                         | an answer                      |
| values that do not fit are refused, others stored                               | the end, after all faults      |
| a stream that is deleted has no schemas                                         | a list of the next stream      |

Rules: Two registrations for a pattern may be in progress at a time, or one other change. The outcome of an unanswered
change is unknown: its text may be listed, then for good. A forgotten pattern begins a new life, with version 1; one
whose forgetting is in doubt is not used again. A deposed leader may answer for DEPOSED_US_MAX, so a list shows what was
acked that long before it was requested. A permitted loss from the log of `__schemas`, or its corruption, ends these
checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final

import msgspec

from penstock.base.config import SchemaCheck, StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import PartitionId, StreamId
from penstock.batch import codec
from penstock.hot.message_group import MessageGroup
from penstock.messages import (
    AlterStreamRequest,
    AppendRequest,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    DeleteStreamRequest,
    ForgetSchemasRequest,
    ForgetSchemasResponse,
    GetSchemaTextRequest,
    GetSchemaTextResponse,
    ListSchemasRequest,
    ListSchemasResponse,
    RegisterSchemasRequest,
    RegisterSchemasResponse,
    Request,
    Response,
    SchemaEntry,
    SchemaInfo,
    SchemasStreamRequest,
    SchemasStreamResponse,
)
from penstock.node.partition.internal_streams import schemas_config
from penstock.schemas.rows import StoredText
from penstock.testing.errors import ViolationError
from penstock.testing.promises import ACK
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from tests.sim.checks.refusals import DEPOSED_US_MAX, Refusals
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.requests import Done, SimClient
from tests.sim.plan.plan import Act, PlannedOperation

NAME = "typed"
KIND: Final = "json-schema"
_AGAIN_US = 500_000
_TRIES = 3
_PATTERNS = 2  # in use at a time
_VERSIONS_MAX = 12  # of a pattern; then it is forgotten
_DOES_NOT_FIT = b"does not fit its schema"
_NOT_CHANGED = frozenset(
    {
        ErrorCode.INCOMPATIBLE_SCHEMA,
        ErrorCode.INVALID_SCHEMA,
        ErrorCode.NOT_LEADER,
        ErrorCode.STREAM_CHANGED,
        ErrorCode.STREAM_NOT_FOUND,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)


def schema_text(number: int, kind: str = "integer") -> str:
    """Return the text of a schema that no other number has; those of one `kind` are compatible."""
    fields = {"id": {"type": kind}, f"n{number}": {"type": "integer"}}
    return json.dumps({"type": "object", "properties": fields, "required": ["id"]})


@dataclass(eq=False)
class Life:
    """A pattern of subjects from its first version until it is forgotten."""

    pattern: str
    is_forced: bool  # its versions may be incompatible
    sent: set[str] = field(default_factory=set)  # texts by hash that were sent and not refused
    refused: dict[str, str] = field(default_factory=dict)  # hash of a text → error
    numbers: dict[int, str] = field(default_factory=dict)  # version → hash of its text, acked or listed
    acked_us: dict[int, int] = field(default_factory=dict)  # version → when a client received the ack
    forgotten_us: int | None = None
    changes: int = 0  # in progress
    is_in_doubt: bool = False  # it may be forgotten, or may be a moment later

    def has(self, number: int, text_hash: str) -> None:
        """Note a version that a client learned of. ViolationError: it is another one than before."""
        known = self.numbers.setdefault(number, text_hash)
        if known != text_hash:
            raise ViolationError(f"version {number} of {self.pattern!r} was {known[:8]}, and is {text_hash[:8]}")
        if list(self.numbers.values()).count(text_hash) > 1:
            raise ViolationError(f"{self.pattern!r} has one text as several versions: {self.numbers}")
        if (why := self.refused.get(text_hash)) is not None:
            raise ViolationError(f"version {number} of {self.pattern!r} is there, and was refused: {why}")
        if text_hash not in self.sent:
            raise ViolationError(f"version {number} of {self.pattern!r} has a text that was never sent for it")


class Registering:
    """The registry of one run. `program`: returns a client that may do everything."""

    def __init__(
        self, around: Surroundings, checks: Checks, refusals: Refusals, program: Callable[[], SimClient], random: Random
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.SCHEMA: self._act}
        self.generations: list[StreamGeneration] = []
        self._around = around
        self._checks = checks
        self._refusals = refusals
        self._program = program
        self._random = random
        self._kept_in = 0  # id of `__schemas`, once a broker has returned it
        self._made = 0
        self._config: StreamConfig | None = None
        self._stream_id = 0  # 0 while it is being created
        self._lives: list[Life] = []  # of this stream, also the forgotten ones
        self._patterns = 0
        self._texts: dict[str, str] = {}  # by hash
        self._kinds: dict[str, str] = {}  # type of `id` by hash
        self._sent = 0
        self._replies = 0

    def _trace(self, what: str) -> None:
        self._around.trace.add("schemas", what)

    @property
    def _now_us(self) -> int:
        return self._around.scheduler.now_us

    @property
    def _registry(self) -> PartitionHistory:
        return self._checks.of(schemas_config().subject, 0)

    @property
    def _is_held(self) -> bool:
        return not may_lose(self._registry)

    # Streams

    def create(self) -> None:
        """Create the next stream; retried until it is answered."""
        if not self._made:
            self._checks.begin(schemas_config())
        self._made += 1
        fields = {
            "name": NAME,
            "subject": f"{NAME}.g{self._made}.>",
            "replicas": min(3, len(self._around.brokers)),
            "segment_bytes": 8_192,
            "schema_check": SchemaCheck.REFUSE,
        }
        self._config = msgspec.convert(fields, StreamConfig)
        self._lives = []
        self._checks.begin(self._config)
        self._ask_to_create(self._config)

    def _ask_to_create(self, config: StreamConfig) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"create {config.subject}: {kind_of(response)}")
            if not isinstance(response, CreateStreamResponse):
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_create(config))
                return
            self._stream_id = int(response.stream.stream_id)
            self._checks.created[self._stream_id] = self._checks.of(config.subject, 0)
            self.generations.append(StreamGeneration(config, self._stream_id))
            while len(self._lives) < _PATTERNS:
                self._begin()

        self._program().ask(CreateStreamRequest(config=config, timeout_ms=3_000), done)

    def _recreate(self) -> None:
        generation = self.generations.pop()
        self._checks.of(generation.config.subject, 0).is_deleted = True
        self._stream_id = 0
        self._ask_to_delete(generation)

    def _ask_to_delete(self, generation: StreamGeneration) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            gone = (ErrorCode.STREAM_NOT_FOUND, ErrorCode.STREAM_CHANGED)
            if response is None or (isinstance(response, RemoteError) and response.code not in gone):
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_delete(generation))
                return
            self._around.count("deleted streams with schemas")
            self.create()

        stream_id = StreamId(generation.stream_id)
        self._program().ask(DeleteStreamRequest(name=NAME, stream_id=stream_id), done)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        subject = self._checks.subjects.get(stream_id)
        config = next((one for one in (schemas_config(), self._config) if one and one.subject == subject), None)
        if config is None:
            return False
        history = self._checks.of(config.subject, 0)
        history.is_damaged = history.is_given_up = True
        request = AlterStreamRequest(name=config.name, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    # Acts

    def _act(self, operation: PlannedOperation) -> None:
        chance = operation.number
        if not self._stream_id:
            return
        if not self._kept_in:
            self._look_up()
            return
        lives = [one for one in self._lives if one.forgotten_us is None and not one.is_in_doubt]
        life = lives[chance // 64 % len(lives)]
        act = chance % 64
        if act < 30:
            self._publish(life, is_fitting=act % 2 == 0)
        elif act < 48:
            self._change(life, act)
        elif act < 58:
            self._list()
        elif act < 60 and life.numbers:
            self._fetch_text(life)
        elif act == 60 and self._made < 3:
            self._recreate()

    def _look_up(self) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"schemas stream: {kind_of(response)}")
            if isinstance(response, SchemasStreamResponse):
                self._kept_in = int(response.stream.stream_id)
                self._checks.created[self._kept_in] = self._registry

        self._program().ask(SchemasStreamRequest(timeout_ms=3_000), done)

    def _ask(self, request: Request, done: Done, tries: int = _TRIES) -> None:
        """Ask the leader of `__schemas`; again after `not_leader`."""

        def heard(response: Response | RemoteError | None, raw: bytes) -> None:
            if tries > 1 and isinstance(response, RemoteError) and response.code == ErrorCode.NOT_LEADER:
                self._ask(request, done, tries - 1)
            else:
                done(response, raw)

        self._program().ask_leader(self._kept_in, 0, request, heard)

    # Changes

    def _begin(self, pattern: str = "") -> None:
        """Let a pattern live: a new one, or one that is forgotten."""
        assert self._config is not None
        self._patterns += 1
        pattern = pattern or self._config.subject.replace(">", f"p{self._patterns}")
        self._lives.append(Life(pattern, is_forced=self._patterns % 4 == 0))

    def _change(self, life: Life, chance: int) -> None:
        if life.changes:
            return
        acked = list(life.acked_us)
        if len(life.sent) >= _VERSIONS_MAX or (chance % 6 == 0 and acked):
            self._forget(life)
        elif chance % 6 == 1 and acked:
            self._register(life, life.numbers[acked[-1]])
        elif chance % 6 == 3 and (shared := self._text_of_another(life)):
            self._register(life, shared)
        elif chance % 6 == 2 and acked:
            self._register(life, self._new_text("string"))
        else:
            for _ in range(1 + chance % 2):  # two at once get different numbers
                self._register(life, self._new_text("integer"))

    def _text_of_another(self, life: Life) -> str:
        """Return the hash of an acked schema of another pattern, which this one never had; "": there is none."""
        own = {text_hash for one in self._lives_of(life) for text_hash in (*one.sent, *one.refused)}
        texts = (one.numbers[number] for one in self._lives for number in one.acked_us)
        return next((one for one in texts if one not in own and self._kinds[one] == "integer"), "")

    def _new_text(self, kind: str) -> str:
        """Return the hash of a schema that was not sent before."""
        text = schema_text(len(self._texts), kind)
        text_hash = StoredText(KIND, text).hash()
        self._texts[text_hash], self._kinds[text_hash] = text, kind
        return text_hash

    def _register(self, life: Life, text_hash: str) -> None:
        stream_id, is_known = self._stream_id, text_hash in life.sent
        is_compatible = self._kinds[text_hash] == "integer"
        life.changes += 1
        life.sent.add(text_hash)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            life.changes -= 1
            self._trace(f"register {text_hash[:8]} for {life.pattern}: {kind_of(response)}")
            if not self._is_held:
                return
            if isinstance(response, RegisterSchemasResponse):
                (found,) = response.versions
                self._registered(life, text_hash, found.version, is_new=found.is_new)
                if is_known and found.is_new and not life.is_forced:
                    raise ViolationError(f"{life.pattern!r}: a schema that was there is new: {found.version}")
            elif isinstance(response, RemoteError) and response.code in _NOT_CHANGED:
                if response.code == ErrorCode.INCOMPATIBLE_SCHEMA and (is_compatible or life.is_forced):
                    raise ViolationError(f"{life.pattern!r}: a compatible schema is refused: {response}")
                if not is_known:
                    self._around.count("refused schemas")
                    life.sent.discard(text_hash)
                    life.refused[text_hash] = str(response)

        request = RegisterSchemasRequest(
            stream_id=StreamId(self._kept_in),
            partition=PartitionId(0),
            of_stream_id=StreamId(stream_id),
            kind=KIND,
            text=self._texts[text_hash],
            entries=(SchemaEntry(subject=life.pattern),),
            force=life.is_forced,
        )
        self._ask(request, done)

    def _registered(self, life: Life, text_hash: str, info: SchemaInfo, *, is_new: bool) -> None:
        self._around.count("registered schemas" if is_new else "schemas that were there")
        if info.text_hash != text_hash or info.subject != life.pattern:
            raise ViolationError(f"{life.pattern!r}: registered {text_hash[:8]}, and the answer is {info}")
        if self._kinds[text_hash] != "integer" and not life.is_forced:
            raise ViolationError(f"{life.pattern!r}: an incompatible schema is version {info.number}")
        life.has(info.number, text_hash)
        life.acked_us.setdefault(info.number, self._now_us)

    def _forget(self, life: Life) -> None:
        life.changes += 1
        life.is_in_doubt = True
        self._begin()  # in use while it is forgotten
        lives = self._lives

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            life.changes -= 1
            self._trace(f"forget {life.pattern}: {kind_of(response)}")
            if not isinstance(response, ForgetSchemasResponse) or not self._is_held:
                return
            self._around.count("forgotten patterns")
            if not len(life.acked_us) <= response.versions <= len(life.sent):
                raise ViolationError(f"{life.pattern!r}: {response.versions} versions of {life.numbers} are forgotten")
            life.forgotten_us, life.is_in_doubt = self._now_us, False
            is_sure = len(life.acked_us) == len(life.sent) and not life.is_forced  # no late change, no contradictions
            if is_sure and lives is self._lives and self._stream_id:
                self._begin(life.pattern)

        request = ForgetSchemasRequest(
            stream_id=StreamId(self._kept_in),
            partition=PartitionId(0),
            of_stream_id=StreamId(self._stream_id),
            subject=life.pattern,
        )
        self._ask(request, done)

    # Reads

    def _list(self, then: Callable[[], None] = lambda: None) -> None:
        asked_us, lives = self._now_us, self._lives

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"list: {kind_of(response)}")
            if isinstance(response, ListSchemasResponse) and self._is_held and lives is self._lives:
                self._around.count("lists of schemas")
                self._listed(response.versions, asked_us)
                then()

        request = ListSchemasRequest(
            stream_id=StreamId(self._kept_in), partition=PartitionId(0), of_stream_id=StreamId(self._stream_id)
        )
        self._ask(request, done)

    def _listed(self, versions: tuple[SchemaInfo, ...], asked_us: int) -> None:
        by_pattern: dict[str, dict[int, SchemaInfo]] = {}
        for one in versions:
            by_pattern.setdefault(one.subject, {})[one.number] = one
        for life in self._lives:
            found = by_pattern.get(life.pattern, {})
            if life.forgotten_us is not None:
                if life.forgotten_us < asked_us - DEPOSED_US_MAX and self._is_last(life) and found:
                    raise ViolationError(f"{life.pattern!r} was forgotten, and has {found}")
                continue
            if life.is_in_doubt:
                continue
            old = {one for before in self._lives_of(life) if before is not life for one in before.sent}
            if any(one.text_hash in old for one in found.values()):
                if self._oldest_us(life) < asked_us - DEPOSED_US_MAX:
                    raise ViolationError(f"{life.pattern!r} was forgotten, and has {found} again")
                continue  # from a deposed leader
            self._check_life(life, found, asked_us)
        unknown = by_pattern.keys() - {life.pattern for life in self._lives}
        if unknown:
            raise ViolationError(f"{NAME} has schemas of another stream: {sorted(unknown)}")

    def _check_life(self, life: Life, found: dict[int, SchemaInfo], asked_us: int) -> None:
        if sorted(found) != list(range(1, len(found) + 1)):
            raise ViolationError(f"{life.pattern!r} has the versions {sorted(found)}")
        for number, one in found.items():
            life.has(number, one.text_hash)
            if self._kinds[one.text_hash] != "integer" and not life.is_forced:
                raise ViolationError(f"version {number} of {life.pattern!r} is not compatible: {one}")
        for number, acked_us in life.acked_us.items():
            if number not in found and acked_us < asked_us - DEPOSED_US_MAX:
                raise ViolationError(f"version {number} of {life.pattern!r} was acked, and is not listed: {found}")

    def _lives_of(self, life: Life) -> list[Life]:
        return [one for one in self._lives if one.pattern == life.pattern]

    def _is_last(self, life: Life) -> bool:
        return self._lives_of(life)[-1] is life and len(life.acked_us) == len(life.sent)

    def _oldest_us(self, life: Life) -> int:
        """Return when its pattern was last forgotten."""
        return max((one.forgotten_us or 0 for one in self._lives_of(life) if one is not life), default=0)

    def _fetch_text(self, life: Life) -> None:
        number, text_hash = next(iter(life.numbers.items()))
        is_old = self._now_us > life.acked_us.get(number, self._now_us) + DEPOSED_US_MAX

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if isinstance(response, GetSchemaTextResponse):
                self._around.count("texts of schemas")
                if response.text != self._texts[text_hash]:
                    raise ViolationError(f"the text {text_hash[:8]} is {response.text}")
            elif isinstance(response, RemoteError) and response.code == ErrorCode.SCHEMA_NOT_FOUND:
                is_there = not life.is_in_doubt and life.forgotten_us is None
                if is_old and is_there and self._is_held:
                    raise ViolationError(f"a text of {life.pattern!r} is not there: {response}")

        request = GetSchemaTextRequest(
            stream_id=StreamId(self._kept_in),
            partition=PartitionId(0),
            of_stream_id=StreamId(self._stream_id),
            text_hash=text_hash,
        )
        self._ask(request, done)

    # Messages

    def _publish(
        self, life: Life, *, is_fitting: bool, outcome: Callable[[bool], None] = lambda _is_stored: None
    ) -> None:
        """Publish one value; `outcome` gets True once it is stored, False once it does not fit."""
        assert self._config is not None
        self._sent += 1
        number = f"{self._sent}" if is_fitting else f'"no {self._sent}"'
        value = f'{{"id": {number}, "of": "{life.pattern}"}}'.encode()
        message = SentMessage(life.pattern.encode(), value, value)
        history = self._checks.of(self._config.subject, 0)
        self._checks.sends(self._config, message)
        must_refuse_us = self._since_us(life)

        def stored(offset: int, epoch: int, *, fsynced: bool) -> None:
            self._around.count("checked messages")
            if not is_fitting and must_refuse_us < history.led_us.get(epoch, 0) and self._is_held:
                raise ViolationError(f"{history.name()}: {value!r} is stored at {offset}, and does not fit")
            self._checks.promised(history, offset, epoch, value, fsynced=fsynced)
            outcome(True)

        def refused(why: str) -> None:
            self._around.count("messages that do not fit")
            if is_fitting and not life.is_forced and self._is_held:
                raise ViolationError(f"{history.name()}: {value!r} fits, and is refused: {why}")
            self._checks.refused(history, value, why)
            outcome(False)

        if self._sent // 2 % 2:
            self._append(message, history, stored, refused)
        else:
            self._send(message, history, stored, refused)

    def _since_us(self, life: Life) -> int:
        """Return the time after which a new leader checks by a schema of the pattern; a late one if there may be none.

        A pattern whose versions may contradict each other is not judged.
        """
        if life.is_forced or not life.acked_us:
            return 1 << 62
        return min(life.acked_us.values()) + DEPOSED_US_MAX

    def _append(
        self, message: SentMessage, history: PartitionHistory, stored: Callable[..., None], refused: Callable[..., None]
    ) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"append {message.name.decode()}: {kind_of(response)}")
            if isinstance(response, AppendResponse):
                stored(int(response.base_offset), int(response.leader_epoch), fsynced=response.fsynced)
            elif isinstance(response, RemoteError) and response.code == ErrorCode.SCHEMA_MISMATCH:
                refused(str(response))
            elif isinstance(response, RemoteError):
                self._refusals.append_refused(history, [message.name], response)

        group = MessageGroup.of([message.subject], [message.name], keys=[None])
        data = bytes(codec.encode(group, 0, 1, base_offset=0, timestamp_us=0, leader_epoch=0)[0])
        request = AppendRequest(stream_id=StreamId(self._stream_id))
        self._program().ask_leader(self._stream_id, 0, request, done, data)

    def _send(
        self, message: SentMessage, history: PartitionHistory, stored: Callable[..., None], refused: Callable[..., None]
    ) -> None:
        self._replies += 1
        reply = b"_INBOX.typed.%d" % self._replies

        def heard(body: bytes) -> None:
            self._around.nats.forget(reply)
            self._trace(f"publish {message.name.decode()}: {body.decode()[:60]}")
            ack = ACK.decode(body) if body else None
            if ack is not None and ack.error is None and ack.offset is not None:
                self._refusals.acked(reply)
                stored(ack.offset, ack.epoch, fsynced=ack.fsynced)
                return
            self._refusals.refused(reply, body)
            if _DOES_NOT_FIT in body:
                refused(body.decode())

        def send() -> None:
            brokers = self._around.nats.publish(message.subject, message.name, reply, heard)
            self._refusals.published(reply, (history,), message.name, brokers)

        self._around.scheduler.after(self._around.network.delay_us(), send)

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names what is still missing: a complete list, a schema, and values checked by it."""
        began_us, turn = self._now_us, 0
        found: dict[bool, bool] = {}  # of a value that fits, of one that does not: True: stored; False: does not fit
        life: Life | None = None
        is_listed = False

        def listed() -> None:
            nonlocal is_listed
            is_listed = True

        def noted(is_fitting: bool, is_stored: bool) -> None:
            if is_stored is is_fitting:
                found[is_fitting] = True

        def left() -> str:
            nonlocal life, turn
            if not self._stream_id or not self._kept_in:
                if not self._kept_in:
                    self._look_up()
                return f"{NAME} is not made yet"
            assert self._config is not None
            if is_stuck(self._registry) or not self._is_held or is_stuck(self._checks.of(self._config.subject, 0)):
                return ""
            turn += 1
            if life is None or life not in self._lives:
                self._begin()
                life = self._lives[-1]
                life.is_forced = False
            if turn % 4 == 1:
                if not life.acked_us and not life.changes:
                    self._register(life, self._new_text("integer"))
                elif not is_listed and self._now_us > began_us + 2 * DEPOSED_US_MAX:
                    self._list(listed)
            if life.acked_us and turn % 4 == 3:
                for is_fitting in (True, False):
                    if is_fitting not in found:
                        self._publish(life, is_fitting=is_fitting, outcome=partial(noted, is_fitting))
            missing = [
                *([] if life.acked_us else ["a schema"]),
                *([] if is_listed else ["a list"]),
                *(f"a value that {'fits' if one else 'does not fit'}" for one in (True, False) if one not in found),
            ]
            return f"of the schemas of {NAME}: {', '.join(missing)}" if missing else ""

        return left


def may_lose(history: PartitionHistory) -> bool:
    """True if a loss of rows of the partition is permitted."""
    return bool(history.cuts or history.may_lose or history.damaged or history.is_damaged or history.is_given_up)
