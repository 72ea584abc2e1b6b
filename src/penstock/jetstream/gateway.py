"""The gateway of one broker: takes requests to JetStream's API, and answers them on their reply subjects.

Rules: all brokers share one queue group, so each request reaches one of them. That broker answers what no leader is
needed for, and passes on what is about a stream's messages to the broker that leads the stream; it keeps nothing of it.
A broker may not know a stream yet that another one has made: it finds none only once its image is confirmed.
The executing broker answers on its own connection to NATS. A request without a reply subject is dropped. The node is
asked through its own typed requests; its answers come back through `answered`, in a later turn.

| event                                  | method              |
|----------------------------------------|---------------------|
| requests from NATS                     | `messages_received` |
| requests that another broker passed on | `passed_on`         |
| the node has answered                  | `answered`          |
| the connection to NATS is up           | `connected`         |
| NATS refused a subscription            | `refused`           |
| time has passed                        | `tick`              |
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from penstock.access.handshake import Principal
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.hot.message_group import MessageGroup
from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.answers import answer_headers, error_answer, json_answer, publish_command, status
from penstock.jetstream.api_call import ApiCall, ApiSubject, parse_api_subject
from penstock.jetstream.conversations import Answered, Asked, Conversation, Question
from penstock.jetstream.errors import ApiError, api_error, encrypted, invalid_json, not_allowed, unavailable
from penstock.jetstream.lookups import Lookups
from penstock.jetstream.node_access import GatewayCaller, GatewayNode, Heard
from penstock.jetstream.ownership import CLUSTER_HEADER, PROBE_HEADER, PrefixOwnership, PrefixState
from penstock.jetstream.stream_config import API_LEVEL, REQUEST_BYTES_MAX
from penstock.messages import PassApiCallsRequest, Request, Response
from penstock.metadata.feature_levels import SUBJECT_INDEX
from penstock.metadata.image import StreamState
from penstock.node.security.access import Authorization
from penstock.node.step import NatsAnswers, Payload

GATEWAY_GROUP = (1 << GROUP_BITS) - 1
"""The lower bits of its subscriptions' ids: all requests of one read are one group. Partitions count from 1."""
HOPS_MAX = 2
"""Brokers that may pass on one request: the leader may change while it is on its way."""
CONVERSATIONS_MAX = 1_000
"""Requests under way at one broker, each with its payload of at most REQUEST_BYTES_MAX."""
UNCONFIRMED_MAX = 1_000
"""Requests about streams that this broker does not know, until its image is confirmed; others are refused."""
_CALLS = msgspec.msgpack.Decoder(list[ApiCall])
_NO_SUBJECT = bytes(range(0x21)) + b"\x7f"  # no character of a subject
_UNCONFIRMED = unavailable("this broker has no contact with the metadata leader; ask again in a moment")
_TIMEOUT_US = 4_500_000  # clients wait for 5 s
_LAST_US = 300_000  # for the rest, without an answer to an optional question
_RETRY_US = 50_000
_REQUIRED_LEVEL = re.compile(rb"\r\nNats-Required-Api-Level: *([^\r]*?) *\r\n", re.IGNORECASE)
_MANAGING = frozenset({"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE"})
"""Operations that change streams or messages."""
_READING = frozenset(
    {"STREAM.MSG.GET", "DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.MSG.NEXT"}
)
"""Operations that lead to messages in an answer."""
_IN_HEADERS = frozenset({"DIRECT.GET", "CONSUMER.MSG.NEXT"})
"""Operations whose answers are messages, so that a refusal is a status: JSON would be taken for a message."""
_ANYWHERE = frozenset({"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE"})
"""Operations about a stream for which any broker asks the metadata leader: they need no partition leader."""

Handler = Callable[[ApiCall, ApiSubject, Now], None]


class Part(Protocol):
    """A part of the gateway that goes on by itself."""

    def heard(self, subject: str, now: Now) -> None:
        """A message without a reply subject has come."""

    def interest_lost(self, subjects: Sequence[bytes], now: Now) -> None:
        """Watched subjects have no subscriber any more."""

    def tick(self, now: Now) -> None:
        """Time has passed, or the image has changed."""

    def shut_down(self) -> None:
        """The broker stops: tell who waits."""

    def turn(self, now: Now) -> None:
        """Do some of the work that waits for its turn."""

    @property
    def has_next_turn(self) -> bool:
        """True if `turn` has something to do."""

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""


class ApiRights(NamedTuple):
    """Rights of the API's callers. All act as one user."""

    may_manage: bool = True  # create, change and delete streams, and delete messages
    user: str | None = None  # with authentication: the user whose rules hold; None: none, so nothing is allowed


ALL_RIGHTS = ApiRights()


@dataclass(slots=True, eq=False)
class _Open:
    """A conversation without an answer."""

    call: ApiCall
    subject: ApiSubject
    conversation: Conversation
    deadline_us: int
    questions: Asked = ()
    answers: list[Answered | None] = field(default_factory=list)
    retry_us: int | None = None  # when the questions without an answer are asked again


class Gateway:
    """JetStream's API at one broker."""

    def __init__(
        self,
        node: GatewayNode,
        *,
        prefixes: tuple[str, ...],
        unsent_bytes: Callable[[], int],
        domain: str = "",
        rights: ApiRights = ALL_RIGHTS,
    ) -> None:
        """`prefixes` are API prefixes with their last dot, such as `$JS.API.`. `unsent_bytes` returns how much of what
        is published nats-server has not taken yet.
        """
        self.node = node
        self.domain = domain
        self.unsent_bytes = unsent_bytes
        self.payload_max = 1 << 20  # nats-server's max_payload: a larger answer would cost the connection
        self.requests: Counter[str] = Counter()  # by operation
        self.errors: Counter[str] = Counter()
        self.count_consumers: Callable[[StreamState], int] = lambda state: 0
        # by operation; of requests without a stream, and of those about a stream that is led here
        self.handlers: dict[str, Handler] = {}
        self.lookups = Lookups(self)
        self.parts: list[Part] = []
        self._prefixes = prefixes
        self._owners = {
            prefix: PrefixOwnership(prefix, number, GATEWAY_GROUP, GROUP_BITS, node.outbox)
            for number, prefix in enumerate(prefixes)
        }
        self._rights = rights
        self._waiting: dict[GatewayCaller, Heard] = {}  # requests to the node without an answer
        self._last_number = 0
        self._to_pass_on: dict[BrokerId, list[ApiCall]] = {}
        self._open: dict[_Open, None] = {}
        # about streams that this broker does not know, and since when they wait; in that order
        self._unconfirmed: deque[tuple[int, ApiCall]] = deque()

    # Events

    def connected(self, payload_max: int, has_jetstream: bool, now: Now) -> None:
        """Note a connection to NATS, and what its server says of itself."""
        self.payload_max = payload_max
        for owner in self._owners.values():
            owner.connected(has_jetstream, now)

    def refused(self, sid: int, reason: str) -> None:
        """Note that NATS refused one of its subscriptions."""
        for owner in self._owners.values():
            owner.refused(sid, reason)

    @property
    def is_decided(self) -> bool:
        """True once it is known which prefixes this broker serves."""
        return all(owner.state is not PrefixState.PROBING for owner in self._owners.values())

    def messages_received(self, group: MessageGroup, now: Now) -> None:
        """Take the API requests of one read of the NATS connection."""
        calls: list[ApiCall] = []
        for row in range(len(group)):
            reply = group.reply(row) or group.early(row)
            subject = group.subject(row).decode(errors="replace")
            if self._is_probed(subject, group.headers(row)):
                continue
            if reply is None:
                for part in self.parts:
                    part.heard(subject, now)
                continue
            owner = self._owners.get(self._parsed(subject).prefix)
            if owner is not None and owner.state is PrefixState.TAKEN:
                calls.append(ApiCall(subject, reply, group.headers(row), group.value(row) or b""))
        self._take_all(calls, now, self._take)

    def passed_on(self, raw: bytes | memoryview, now: Now) -> None:
        """Take API requests that another broker passed on. Raise RemoteError (bad_request)."""
        try:
            calls = _CALLS.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"API calls: {error}") from None
        if any(not call.reply or call.reply.translate(None, _NO_SUBJECT) != call.reply for call in calls):
            raise RemoteError(ErrorCode.BAD_REQUEST, "API calls: a reply subject is none")
        self._take_all(calls, now, self._take)

    def answered(self, caller: GatewayCaller, response: Response | RemoteError, payload: Payload) -> None:
        """Take the node's answer to a request of `ask`."""
        if (heard := self._waiting.pop(caller, None)) is not None:
            heard(response, payload)

    def tick(self, now: Now) -> None:
        """Ask again what could not be answered yet, and refuse what has waited for too long."""
        if self.node.cluster_id:
            for owner in self._owners.values():
                owner.tick(now, self.node.process)
        for one in list(self._open):
            if now.elapsed_us >= one.deadline_us and all(question.is_optional for question in one.questions):
                one.deadline_us += _LAST_US
                late = RemoteError(ErrorCode.TIMED_OUT, "no answer in time")
                self._go_on(one, [answer or Answered(late) for answer in one.answers])
            elif now.elapsed_us >= one.deadline_us:
                self._end(one, unavailable("no answer in time; ask again in a moment"))
            elif one.retry_us is not None and now.elapsed_us >= one.retry_us:
                one.retry_us = None
                self._ask_missing(one, now)
        self._look_at_unconfirmed(now)
        self.lookups.tick(now)
        for part in self.parts:
            part.tick(now)

    @property
    def served(self) -> Mapping[str, bool]:
        """The API prefixes, each with whether this broker serves it."""
        return {prefix: owner.state is PrefixState.TAKEN for prefix, owner in self._owners.items()}

    @property
    def under_way(self) -> int:
        """Number of requests that wait for the node."""
        return len(self._open)

    def interest_lost(self, subjects: Sequence[bytes], now: Now) -> None:
        """Watched subjects have no subscriber any more."""
        for part in self.parts:
            part.interest_lost(subjects, now)

    def shut_down(self) -> None:
        """The broker stops: tell who waits."""
        for part in self.parts:
            part.shut_down()

    def turn(self, now: Now) -> None:
        """Do some of the work that waits for its turn."""
        for part in self.parts:
            part.turn(now)

    @property
    def has_next_turn(self) -> bool:
        """True if `turn` has something to do."""
        return any(part.has_next_turn for part in self.parts)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        dues = [one.deadline_us if one.retry_us is None else one.retry_us for one in self._open]
        if self._unconfirmed:
            dues.append(self.node.now.elapsed_us + _RETRY_US)
        if (due_us := self.lookups.next_deadline_us) is not None:
            dues.append(due_us)
        if self.node.cluster_id:
            dues += [due for owner in self._owners.values() if (due := owner.next_deadline_us) is not None]
        dues += [due_us for part in self.parts if (due_us := part.next_deadline_us) is not None]
        return min(dues, default=None)

    # What handlers use

    def ask(self, request: Request, now: Now, heard: Heard, *, raw: bytes = b"") -> None:
        """Ask the node as the API's user; `heard` gets its answer in a later turn."""
        self._last_number += 1
        caller = GatewayCaller(self._last_number)
        self._waiting[caller] = heard
        self.node.request(caller, request, raw, now, self._user())

    def converse(self, call: ApiCall, subject: ApiSubject, now: Now, conversation: Conversation) -> None:
        """Answer a call with what the conversation returns, or with its refusal."""
        if len(self._open) >= CONVERSATIONS_MAX:
            conversation.close()
            self.refuse(call, subject, unavailable("too many requests at once; ask again in a moment"))
            return
        one = _Open(call, subject, conversation, now.elapsed_us + _TIMEOUT_US)
        self._open[one] = None
        self._go_on(one, None)

    def answer(self, call: ApiCall, payload: bytes, headers: bytes | None = None) -> None:
        """Answer a call on its reply subject."""
        size = len(payload) + len(headers or b"")
        if size > self.payload_max:
            operation = self._parsed(call.subject).operation
            text = f"the answer has {size} bytes, and nats-server's max_payload is {self.payload_max}; ask for less"
            headers, payload = None, error_answer(operation, 500, 10008, text)
            self.errors[operation] += 1
        self.send(publish_command(call.reply, payload, headers))

    def send(self, commands: bytes) -> None:
        """Send ready commands, in one piece: several answers of the same read."""
        self.node.outbox.step.publish.append(NatsAnswers(GATEWAY_GROUP, commands, is_single=True))

    def refuse(self, call: ApiCall, subject: ApiSubject, error: ApiError) -> None:
        """Answer a call with an error."""
        self.errors[subject.operation] += 1
        if subject.operation in _IN_HEADERS:
            self.answer(call, b"", status(error.code, error.description))
        else:
            self.answer(call, error_answer(subject.operation, error.code, error.err_code, error.description))

    def stream(self, name: str) -> StreamState | None:
        """Return a stream that the API's user may see; never one of Penstock's own."""
        image = self.node.image
        if not name or name.startswith("__") or name not in image.names:
            return None
        state = image.by_name(name)
        return None if state.config.is_internal or not self.authorization.may_see(state) else state

    def streams(self) -> list[StreamState]:
        """Return all streams that the API's user may see, by name; none of Penstock's own."""
        image = self.node.image
        names = sorted(name for name in image.names if not name.startswith("__"))
        seen = (image.by_name(name) for name in self.authorization.seen_names(names))
        return [state for state in seen if not state.config.is_internal]

    @property
    def authorization(self) -> Authorization:
        """Permissions of the API's user."""
        return self.node.access.of(self._user())

    # Inside

    def _user(self) -> Principal | None:
        """Return the user that all callers act as; None: no user, which may do everything without authentication."""
        user = None if self._rights.user is None else self.node.image.users.get(self._rights.user)
        return None if user is None else Principal(user.name, user.made_index)

    def _is_probed(self, subject: str, headers: bytes | None) -> bool:
        """Take the answer to a probe; False if it is none."""
        return any(owner.hears(subject, headers, self.node.cluster_id) for owner in self._owners.values())

    def _parsed(self, subject: str) -> ApiSubject:
        return parse_api_subject(subject, self._prefixes) or ApiSubject("", "")

    def _take_all(self, calls: Sequence[ApiCall], now: Now, take: Callable[[ApiCall, Now], None]) -> None:
        """Take calls that came together; a bug in one is raised behind the others."""
        bug: Exception | None = None
        for call in calls:
            try:
                take(call, now)
            except Exception as error:  # noqa: BLE001 (raised below)
                bug = error
        self.lookups.ask_gets(now)
        self._send_passed_on()
        if self.has_next_turn:
            self.turn(now)  # at once: a pull request waits
        if bug is not None:
            raise bug

    def _take(self, call: ApiCall, now: Now) -> None:
        subject = self._parsed(call.subject)
        if subject.operation == "INFO" and call.headers is not None and PROBE_HEADER.encode() in call.headers:
            self.answer(call, json_answer("INFO"), answer_headers({CLUSTER_HEADER: self.node.cluster_id}))
            return
        if subject.operation not in self.handlers:
            return  # as a nats-server without that operation: silence
        self.requests[subject.operation] += call.hops == 0
        is_known = not subject.stream or subject.stream in self.node.image.names
        if is_known or subject.operation == "STREAM.CREATE" or self._is_confirmed(now.elapsed_us):
            self._execute(call, subject, now)
        elif len(self._unconfirmed) < UNCONFIRMED_MAX:
            self._unconfirmed.append((now.elapsed_us, call))
        else:
            self.refuse(call, subject, _UNCONFIRMED)

    def _is_confirmed(self, since_us: int) -> bool:
        """True if the image has all streams that were made before a time."""
        confirmed_us = self.node.confirmed_us
        return confirmed_us is not None and confirmed_us >= since_us

    def _look_at_unconfirmed(self, now: Now) -> None:
        """Go on with requests about unknown streams, once the image is confirmed; refuse those that waited too long."""
        calls = []
        while self._unconfirmed and self._is_confirmed(self._unconfirmed[0][0]):
            calls.append(self._unconfirmed.popleft()[1])
        while self._unconfirmed and self._unconfirmed[0][0] + _TIMEOUT_US <= now.elapsed_us:
            call = self._unconfirmed.popleft()[1]
            self.refuse(call, self._parsed(call.subject), _UNCONFIRMED)
        if calls:
            self._take_all(calls, now, lambda call, now: self._execute(call, self._parsed(call.subject), now))

    def _execute(self, call: ApiCall, subject: ApiSubject, now: Now) -> None:
        handler = self.handlers[subject.operation]
        if (refusal := self._refusal(call, subject)) is not None:
            self.refuse(call, subject, refusal)
            return
        stream = self.stream(subject.stream)
        is_here = stream is None or subject.operation in _ANYWHERE
        if stream is None or is_here or (leader := stream.partitions[0].leader) == self.node.broker_id:
            handler(call, subject, now)
        elif leader is not None and call.hops < HOPS_MAX:
            self._to_pass_on.setdefault(leader, []).append(msgspec.structs.replace(call, hops=call.hops + 1))
        else:
            self.refuse(call, subject, unavailable("the stream has no leader at the moment; ask again"))

    def _refusal(self, call: ApiCall, subject: ApiSubject) -> ApiError | None:
        """Return why the call is not even tried."""
        if (size := len(call.payload) + len(call.headers or b"")) > REQUEST_BYTES_MAX:
            return invalid_json(f"it has {size} bytes; the limit is {REQUEST_BYTES_MAX}")
        if subject.operation in _MANAGING and not self._rights.may_manage:
            return not_allowed("the API only reads here: the broker's setting jetstream_rights is `read`")
        if self.node.access.is_guarded and self._user() is None:
            return not_allowed("the API has no user here: see the broker's setting jetstream_user")
        stream = self.stream(subject.stream)
        if stream is not None and stream.config.is_encrypted and subject.operation in _READING:
            return encrypted(stream.name)
        if call.headers is not None and _asks_for_too_much(call.headers):
            is_direct = subject.operation == "DIRECT.GET"
            return ApiError(412, 10185, "Required Api Level" if is_direct else "JetStream minimum api level required")
        if not self.node.image.has_feature(SUBJECT_INDEX):
            return unavailable("the API needs feature level 0.4: upgrade all brokers, then `penstock cluster upgrade`")
        return None

    def _send_passed_on(self) -> None:
        for leader, calls in self._to_pass_on.items():
            if self.node.send_to_peer(leader, PassApiCallsRequest(), msgspec.msgpack.encode(calls)):
                continue
            for call in calls:
                self.refuse(
                    call, self._parsed(call.subject), unavailable("no connection to the stream's leader; ask again")
                )
        self._to_pass_on.clear()

    # Conversations

    def _go_on(self, one: _Open, answers: list[Answered] | None) -> None:
        """Pass the answers to the conversation, and ask what it asks next, or answer the call."""
        try:
            questions = next(one.conversation) if answers is None else one.conversation.send(answers)
            while not questions:
                questions = one.conversation.send([])
        except StopIteration as end:
            self._end(one, end.value)
        except ApiError as refusal:
            self._end(one, refusal)
        except RemoteError as refusal:
            self._end(one, api_error(refusal))
        except Exception:
            del self._open[one]  # a bug: nothing waits for its end
            raise
        else:
            one.questions, one.answers = questions, [None] * len(questions)
            self._ask_missing(one, self.node.now)

    def _ask_missing(self, one: _Open, now: Now) -> None:
        for number, question in enumerate(one.questions):
            if one.answers[number] is None:
                heard = partial(self._heard, one, number, question, one.questions)
                if question.of is None or question.of == self.node.broker_id:
                    self.ask(question.request, now, heard)
                else:
                    self._ask_other(question, heard)

    def _ask_other(self, question: Question, heard: Heard) -> None:
        """Ask another broker; the rights are checked here, for brokers may do everything there."""
        assert question.of is not None
        try:
            self.authorization.check(question.request)
        except RemoteError as refusal:
            heard(refusal, None)
        else:
            self.node.ask_peer(question.of, question.request, lambda response, raw: heard(response, bytes(raw)))

    def _heard(
        self,
        one: _Open,
        number: int,
        question: Question,
        questions: Asked,
        response: Response | RemoteError,
        payload: Payload,
    ) -> None:
        if one not in self._open or one.questions is not questions:
            return
        is_early = isinstance(response, RemoteError) and response.code == ErrorCode.NOT_YET
        if is_early or (question.until is not None and not question.until(response)):
            one.retry_us = self.node.now.elapsed_us + _RETRY_US
            return
        one.answers[number] = Answered(response, payload)
        if all(answer is not None for answer in one.answers):
            one.retry_us = None
            self._go_on(one, [answer for answer in one.answers if answer is not None])

    def _end(self, one: _Open, end: bytes | ApiError) -> None:
        del self._open[one]
        one.conversation.close()
        if isinstance(end, ApiError):
            self.refuse(one.call, one.subject, end)
        else:
            self.answer(one.call, end)


def _asks_for_too_much(headers: bytes) -> bool:
    found = _REQUIRED_LEVEL.search(headers)
    return found is not None and not (re.fullmatch(rb"[+-]?\d{1,9}", found[1]) and int(found[1]) <= API_LEVEL)
