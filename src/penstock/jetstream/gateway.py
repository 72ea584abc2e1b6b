"""The gateway of one broker: takes requests to JetStream's API, and answers them on their reply subjects.

Rules: all brokers share one queue group, so each request reaches one of them. That broker answers what no leader is
needed for, and passes on what is about a stream's messages to the broker that leads the stream; it keeps nothing of it.
A broker may not know a stream yet that another one has made, or has deleted: what depends on that is answered only once
its image is confirmed, by a heartbeat that the metadata leader answered since the request came.
The executing broker answers on its own connection to NATS. A request without a reply subject is dropped. Requests
queue up (`ApiQueue`) and are served in slices, between which everything else gets its turn; one that finds the queue
full is refused. The node is asked through its own typed requests; its answers come back through `answered`, in a later
turn. A bug in one request is answered, and raised once all else of the event is done: the others must not pay for it.

| event                                  | method              |
|----------------------------------------|---------------------|
| requests from NATS                     | `messages_received` |
| acks of consumers from NATS            | `acks_received`     |
| requests that another broker passed on | `passed_on`         |
| the node has answered                  | `answered`          |
| the connection to NATS is up           | `connected`         |
| NATS refused a subscription            | `refused`           |
| time has passed                        | `tick`              |
| the broker stops                       | `shut_down`         |
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from penstock.access.handshake import Principal
from penstock.base import limits
from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, StreamId
from penstock.base.meters import Histogram
from penstock.base.subjects import is_within
from penstock.hot.kept_rows import refuse_rows
from penstock.hot.message_group import MessageGroup
from penstock.hot.scan import GROUP_BITS
from penstock.jetstream.answers import answer_headers, error_answer, json_answer, publish_command, status
from penstock.jetstream.api_call import HOPS_MAX, ApiCall, ApiSubject, parse_api_subject
from penstock.jetstream.api_queue import ROWS_AT_ONCE, ApiQueue, ApiRows
from penstock.jetstream.conversations import Conversation
from penstock.jetstream.errors import (
    NOT_SERVED,
    ApiError,
    internal_error,
    invalid_config,
    invalid_json,
    not_allowed,
    not_served,
    several_partitions,
    stopping,
    too_many_requests,
    unavailable,
    unreadable,
)
from penstock.jetstream.lookups import Lookups
from penstock.jetstream.node_access import GatewayCaller, GatewayNode, Heard
from penstock.jetstream.open_conversations import TIMEOUT_US, OpenConversations
from penstock.jetstream.ownership import CLUSTER_HEADER, PROBE_HEADER, ApiOwnership, PrefixOwnership
from penstock.jetstream.partition_streams import (
    addressed,
    is_partition_stream,
    partition_names,
    partition_stream,
    real_ids,
)
from penstock.jetstream.stream_config import API_LEVEL, REQUEST_BYTES_MAX
from penstock.messages import FetchRequest, ListOffsetsRequest, PassApiCallsRequest, Request, Response
from penstock.metadata.api_decisions import ApiState
from penstock.metadata.image import ClusterImage, StreamState
from penstock.metadata.partition_names import parsed_name, partition_name
from penstock.node.partition.partition import Shown
from penstock.node.quorum.metadata_forwarding import THE_BROKER
from penstock.node.security.access import Authorization
from penstock.node.step import NatsAnswers, Payload

if TYPE_CHECKING:
    from penstock.jetstream.readers.stored.numbers import ConsumerNumbers

GATEWAY_GROUP = (1 << GROUP_BITS) - 1
"""The lower bits of its subscriptions' ids: all requests of one read are one group. Partitions count from 1."""
ACK_GROUP = GATEWAY_GROUP - 1
"""The same of the subscriptions to acks of consumers."""
DENIAL_CHARS_MAX = 400
"""Of a log line about a denied request."""
SLICE_US = 1_000
"""Estimated time of the event loop for requests, between two looks at everything else: publishers wait for so long."""
_CALL_US, _LISTED_US = 250, 10  # of a request, and for each stream of a list
_QUICK_US = {"CONSUMER.MSG.NEXT": 20}
_NOTED_US = 40  # of a get that is looked up together with others
_LISTS = frozenset({"STREAM.LIST", "STREAM.NAMES"})
QUEUED_US_MAX = 3_000_000
"""For a request in the queue: clients wait for 5 s, and the rest is for its answer. Otherwise a flood has each request
wait until its client has given up, and the broker makes answers that no client reads."""
UNCONFIRMED_MAX = 1_000
"""Requests that wait until this broker's image is confirmed, as CONVERSATIONS_MAX; others are refused."""
_OF_ALL = frozenset({"INFO", "STREAM.LIST", "STREAM.NAMES", "STREAM.UPDATE"})
"""Operations whose answers depend on the newest metadata, whatever this broker knows."""
_CALLS = msgspec.msgpack.Decoder(list[ApiCall])
_NO_SUBJECT = bytes(range(0x21)) + b"\x7f"  # no character of a subject
_UNCONFIRMED = unavailable("this broker has no contact with the metadata leader; ask again in a moment")
_RETRY_US = 50_000
_CONFIRM_US = limits.REFUSALS_CONFIRM_MS * 1_000
_REQUIRED_LEVEL = re.compile(rb"\r\nNats-Required-Api-Level: *([^\r]*?) *\r\n", re.IGNORECASE)
_MANAGING = frozenset({"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE", "STREAM.PURGE", "STREAM.MSG.DELETE"})
"""Operations that change streams or messages."""
_READING = frozenset(
    {"STREAM.MSG.GET", "DIRECT.GET", "CONSUMER.CREATE", "CONSUMER.DURABLE.CREATE", "CONSUMER.MSG.NEXT"}
)
"""Operations that lead to messages in an answer."""
_PATIENT = frozenset({"CONSUMER.MSG.NEXT"})
"""Operations whose clients say themselves for how long they wait."""
_OF_STATUSES = frozenset({"DIRECT.GET", "CONSUMER.MSG.NEXT"})
"""Operations whose answers are messages, so that a refusal is a status: JSON would be taken for a message."""
_ANYWHERE = frozenset({"STREAM.CREATE", "STREAM.UPDATE", "STREAM.DELETE"})
"""Operations about a stream for which any broker asks the metadata leader: they need no partition leader."""

Handler = Callable[[ApiCall, ApiSubject, Now], None]
Talk = Callable[[ApiCall, ApiSubject, Now], Conversation]
"""Answers a request in steps."""


class Part(Protocol):
    """A part of the gateway that goes on by itself."""

    def heard(self, subject: str, now: Now) -> None:
        """A message without a reply subject has come."""

    def acks_received(self, group: MessageGroup, now: Now) -> None:
        """Acks of consumers have come, in one read."""

    def interest_lost(self, subjects: Sequence[bytes], now: Now) -> None:
        """Watched subjects have no subscriber any more."""

    def interest_known(self, now: Now) -> None:
        """The interest that `Deliveries.ask_interest` asked for is known."""

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


class ReaderNumbers(NamedTuple):
    """Numbers of the readers (consumers) at this broker, and of what was sent to them since it was started."""

    push: int = 0
    pull: int = 0
    pulls_waiting: int = 0
    delivered: int = 0
    delivered_bytes: int = 0  # frames on the leaf connection, status messages among them
    letters_waiting: int = 0  # dead letters that are not stored yet
    letters_stored: int = 0
    letters_failed: int = 0  # attempts
    too_large: int = 0  # messages without their value, because nats-server takes none of that size


NO_READERS = ReaderNumbers()


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
        self.errors: Counter[tuple[str, int]] = Counter()  # by operation and error code
        self.seconds: dict[str, Histogram] = {}  # from requests until their answers, in µs, by operation
        self.count_consumers: Callable[[StreamState], int] = lambda state: 0
        self.reader_numbers: Callable[[], ReaderNumbers] = lambda: NO_READERS
        self.stored_numbers: Callable[[], Iterator[ConsumerNumbers]] = lambda: iter(())
        # by operation; of requests without a stream, and of those about a stream that is led here
        self.handlers: dict[str, Handler] = {}
        self.talks: dict[str, Talk] = {}  # by operation; those that the socket API asks for, too
        self.lookups = Lookups(self)
        self.conversations = OpenConversations(self)
        self.parts: list[Part] = []
        self._prefixes = prefixes
        self._ownership = ApiOwnership(prefixes, GATEWAY_GROUP, GROUP_BITS, node)
        self.rights = rights
        self._waiting: dict[GatewayCaller, Heard] = {}  # requests to the node without an answer
        self._last_number = 0
        self._to_pass_on: dict[BrokerId, list[ApiCall]] = {}
        self._bugs: list[Exception] = []  # of the present event
        self._is_stopping = False
        self._denials: dict[str, int] = {}  # by operation: when the next one is logged
        self._queue = ApiQueue()
        self._seen: tuple[ClusterImage, str, StreamState] | None = None  # the last stream that was looked up
        # what waits until the image is confirmed, and since when; in that order
        self._unconfirmed: deque[tuple[int, ApiCall]] = deque()
        self._confirmed_by_us = -1  # when the metadata leader was asked for them last

    # Events

    def connected(self, payload_max: int, has_jetstream: bool, now: Now) -> None:
        """Note a connection to NATS, and what its server says of itself."""
        self.payload_max = payload_max
        self._ownership.connected(has_jetstream, now)

    def refused(self, sid: int, reason: str) -> None:
        """Note that NATS refused one of its subscriptions."""
        self._ownership.refused(sid, reason, self.node.now)
        if sid & GATEWAY_GROUP == ACK_GROUP:
            text = f"NATS refuses the subscription to acks of consumers: {reason}; allow the brokers `$JS.ACK.>`"
            self.node.outbox.step.notices.append(text)

    @property
    def is_decided(self) -> bool:
        """True once it is known which prefixes this broker serves."""
        return self._ownership.is_decided

    @property
    def has_news(self) -> bool:
        """True if the cluster has decided something that `tick` is to act on now."""
        return self._ownership.has_news

    def messages_received(self, group: MessageGroup, now: Now) -> bool:
        """Take the API requests of one read of the NATS connection: they are served in turn, the first ones at once.

        True: all were answered, and nothing follows but what is in the outbox.
        """
        if self._answers_at_once(group, now, 0):
            return True
        self._add(group, 0, now)
        self._raise_bug()
        return False

    def acks_received(self, group: MessageGroup, now: Now) -> None:
        """Take the acks of consumers of one read of the NATS connection."""
        self.node.check_session(now)
        for part in self.parts:
            self._try(partial(part.acks_received, group, now))
        self._raise_bug()

    def passed_on(self, raw: bytes | memoryview, now: Now) -> None:
        """Take API requests that another broker passed on. Raise RemoteError (bad_request)."""
        try:
            calls = _CALLS.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RemoteError(ErrorCode.BAD_REQUEST, f"API calls: {error}") from None
        if any(not call.reply or call.reply.translate(None, _NO_SUBJECT) != call.reply for call in calls):
            raise RemoteError(ErrorCode.BAD_REQUEST, "API calls: a reply subject is none")
        by_hops: dict[int, list[ApiCall]] = {}
        for call in calls:
            if not self._has_left(call):
                by_hops.setdefault(min(max(1, call.hops), HOPS_MAX), []).append(call)
        for hops, some in by_hops.items():
            group = MessageGroup.of(
                [call.subject.encode() for call in some],
                [call.payload for call in some],
                headers=[call.headers for call in some],
                replies=[call.reply for call in some],
            )
            if not self._answers_at_once(group, now, hops):
                self._add(group, hops, now)
        self._raise_bug()

    def _answers_at_once(self, group: MessageGroup, now: Now, hops: int) -> bool:
        """Answer plain gets without the queue, if nothing waits there; after a bug they go through it."""
        try:
            return not self._queue and not self._is_stopping and self.lookups.answer_at_once(group, now, hops)
        except Exception as bug:  # noqa: BLE001 (raised at the end of the event)
            self.note_bug(bug)
            return False

    def _has_left(self, call: ApiCall) -> bool:
        """True if the cluster has withdrawn from the prefix of a call that another broker passed on."""
        decision = self.node.image.api(self._parsed(call.subject).prefix)
        return decision is not None and decision.state is ApiState.WITHDRAWN

    def answered(self, caller: GatewayCaller, response: Response | RemoteError, payload: Payload) -> None:
        """Take the node's answer to a request of `ask`."""
        if (heard := self._waiting.pop(caller, None)) is not None:
            heard(response, payload)
        self._raise_bug()

    def tick(self, now: Now) -> None:
        """Ask again what could not be answered yet, and refuse what has waited for too long."""
        self.node.check_session(now)
        steps = (self._ownership.tick, self.conversations.tick, self._refuse_unconfirmed, self._confirm)
        for step in (*steps, self.lookups.tick, *(part.tick for part in self.parts)):
            self._try(partial(step, now))
        self._raise_bug()

    @property
    def served(self) -> Mapping[str, bool]:
        """The API prefixes, each with whether this broker serves it."""
        return {prefix: owner.is_served for prefix, owner in self._ownership.prefixes.items()}

    @property
    def unknown(self) -> tuple[str, ...]:
        """Why this broker does not know if another service has a prefix, for each where that is so for longer."""
        return tuple(why for owner in self._ownership.prefixes.values() if (why := owner.unknown))

    @property
    def under_way(self) -> int:
        """Number of requests that wait for the node."""
        return len(self.conversations.open)

    def interest_lost(self, subjects: Sequence[bytes], now: Now) -> None:
        """Watched subjects have no subscriber any more."""
        for part in self.parts:
            part.interest_lost(subjects, now)

    def interest_known(self, now: Now) -> None:
        """The interest that `Deliveries.ask_interest` asked for is known."""
        for part in self.parts:
            self._try(partial(part.interest_known, now))
        self._raise_bug()

    def shut_down(self) -> None:
        """The broker stops: tell who waits, and refuse what comes later. Nothing here waits for the disk."""
        self._is_stopping = True
        now, calls = self.node.now, [*self._queue.calls, *(call for _, call in self._unconfirmed)]
        self._queue.calls.clear()
        self._unconfirmed.clear()
        while (rows := self._queue.take_rows()) is not None:
            self._try(partial(self._refuse_rows, rows, now, stopping()))
        for call in calls:
            self.refuse(call, self._parsed(call.subject), stopping())
        for shut_down in (self.conversations.shut_down, self.lookups.shut_down, *(one.shut_down for one in self.parts)):
            self._try(shut_down)
        waiting, self._waiting = self._waiting, {}  # their answers are ignored from now on
        for heard in waiting.values():
            self._try(partial(heard, RemoteError(ErrorCode.STOPPING, stopping().description), None))
        self._raise_bug()

    def turn(self, now: Now) -> None:
        """Do some of the work that waits for its turn."""
        self._turn(now)
        self._raise_bug()

    def _turn(self, now: Now) -> None:
        self.node.check_session(now)
        self._serve(now)
        for part in self.parts:
            self._try(partial(part.turn, now))

    def note_bug(self, bug: Exception) -> None:
        """Have a bug raised at the end of the present event."""
        self._bugs.append(bug)

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as bug:  # noqa: BLE001 (raised at the end of the event)
            self.note_bug(bug)

    def _raise_bug(self) -> None:
        """Raise the first bug of the event."""
        if self._bugs:
            bug = self._bugs[0]
            self._bugs.clear()
            raise bug

    @property
    def has_next_turn(self) -> bool:
        """True if `turn` has something to do."""
        if self._queue or self._has_confirmed:
            return True
        for part in self.parts:  # noqa: SIM110 (asked for several times in each turn)
            if part.has_next_turn:
                return True
        return False

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        dues: list[int] = []
        if self._unconfirmed:
            dues.append(self.node.now.elapsed_us + (_CONFIRM_US if self._is_to_confirm else _RETRY_US))
        latest = (self.conversations.next_deadline_us, self.lookups.next_deadline_us, self._ownership.next_deadline_us)
        dues += [due_us for due_us in (*latest, *(one.next_deadline_us for one in self.parts)) if due_us is not None]
        return min(dues, default=None)

    # What handlers use

    def ask(self, request: Request, now: Now, heard: Heard, *, raw: bytes = b"", who: Principal | None = None) -> None:
        """Ask the node, as the API's user unless another is named; `heard` gets its answer in a later turn."""
        self._last_number += 1
        caller = GatewayCaller(self._last_number)
        self._waiting[caller] = heard
        try:
            self.node.request(caller, addressed(request), raw, now, self.user if who is None else who)
        except Exception as bug:  # noqa: BLE001 (raised at the end of the event)
            self.note_bug(bug)
            self.node.outbox.reply(caller, RemoteError(ErrorCode.INTERNAL, internal_error().description))

    def ask_rows(self, request: FetchRequest, now: Now, heard: Heard) -> None:
        """Ask for rows of which readers get those that match their filters.

        So they are read for a user, too, who may only read what these filters take.
        """
        state = self.stream_of(StreamId(request.stream_id))
        if state is None or request.subjects is not None or not self.read_subjects(state):
            self.ask(request, now, heard)
            return

        def checked(response: Response | RemoteError, payload: Payload) -> None:
            try:
                self.check(ListOffsetsRequest(stream_id=request.stream_id, at="latest"))
            except RemoteError as refusal:
                response, payload = refusal, None
            heard(response, payload)

        self.ask(request, now, checked, who=THE_BROKER)

    def narrowed(self, state: StreamState, patterns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the subjects of a request that reads; if it is about all of the stream's, those that the API's user
        may read.
        """
        allowed = self.read_subjects(state)
        is_all = any(all(is_within(one, pattern) for one in state.config.subjects) for pattern in patterns)
        return allowed if allowed and is_all else patterns

    def take_again(self, calls: Sequence[ApiCall]) -> None:
        """Serve calls that waited, in a later turn."""
        self._queue.calls.extend(calls)

    def converse(self, call: ApiCall, subject: ApiSubject, now: Now, conversation: Conversation) -> None:
        """Answer a call with what the conversation returns, or with its refusal."""

        def end(answer: bytes | ApiError) -> None:
            if isinstance(answer, ApiError):
                self.refuse(call, subject, answer)
            else:
                self.answer(call, answer)

        self.conversations.begin(end, now, conversation)

    def answer(self, call: ApiCall, payload: bytes, headers: bytes | None = None) -> None:
        """Answer a call on its reply subject."""
        size = len(payload) + len(headers or b"")
        operation = self._parsed(call.subject).operation
        self.took(operation, call.received_us)
        if size > self.payload_max:
            text = f"the answer has {size} bytes, and nats-server's max_payload is {self.payload_max}; ask for less"
            headers, payload = None, error_answer(operation, 500, 10008, text)
            self.errors[operation, 10008] += 1
        self.send(publish_command(call.reply, payload, headers))

    def took(self, operation: str, received_us: int, count: int = 1) -> None:
        """Note that calls were answered which came together, at this wall time."""
        found = self.seconds.get(operation)
        if found is None:
            found = self.seconds[operation] = Histogram.of_times()
        found.add(max(0, self.node.now.wall_us - received_us), count)

    def denied(self, operation: str, stream: str, why: str) -> None:
        """Have a denied request logged, unless one of the same operation was lately."""
        now_us = self.node.now.elapsed_us
        if now_us >= self._denials.get(operation, now_us):
            self._denials[operation] = now_us + limits.RATE_LIMITED_LOG_INTERVAL_MS * 1_000
            user = f" as user {self.rights.user!r}" if self.rights.user else ""
            text = f"denied: {operation} of JetStream's API{user}, stream {stream!r}: {why}"
            self.node.outbox.step.notices.append(text[:DENIAL_CHARS_MAX])

    def send(self, commands: bytes) -> None:
        """Send ready commands, in one piece: several answers of the same read."""
        self.node.outbox.step.publish.append(NatsAnswers(GATEWAY_GROUP, commands, is_single=True))

    def refuse(self, call: ApiCall, subject: ApiSubject, error: ApiError) -> None:
        """Answer a call with an error."""
        self.errors[subject.operation, error.err_code] += 1
        if error.code == 403:
            self.denied(subject.operation, subject.stream, error.description)
        if subject.operation in _OF_STATUSES:
            self.answer(call, b"", status(error.code, error.description))
        else:
            self.answer(call, error_answer(subject.operation, error.code, error.err_code, error.description))

    def stream(self, name: str) -> StreamState | None:
        """Return a stream that the API's user may see, perhaps a partition's; never one of Penstock's own."""
        known = self._seen  # a request asks for its stream several times
        if known is not None and known[0] is self.node.image and known[1] == name and not self.node.access.is_guarded:
            return known[2]
        state = self.real_stream(name)
        if state is None and (found := parsed_name(name)) is not None and name not in self.node.image.names:
            whole = self.real_stream(found[0])
            state = None if whole is None else partition_stream(whole, found[1])
        if state is not None:
            self._seen = self.node.image, name, state
        return state

    def real_stream(self, name: str) -> StreamState | None:
        """Return a stream that the API's user may see, but no partition's."""
        image = self.node.image
        if not name or name.startswith("__") or name not in image.names:
            return None
        state = image.by_name(name)
        return None if state.config.is_internal or not self.authorization.may_see(state) else state

    def several_partitions(self, state: StreamState) -> ApiError:
        """Return the refusal of what needs one order, which a stream of several partitions has not."""
        return several_partitions(state.name, len(state.partitions), partition_names(state, self.taken_names(state)))

    def taken_names(self, state: StreamState) -> list[str]:
        """Return the real streams that are named as the partitions of a stream, which are not read because of them."""
        names = (partition_name(state.name, number) for number in range(len(state.partitions)))
        return [one for one in names if self.real_stream(one) is not None]

    def stream_of(self, stream_id: StreamId) -> StreamState | None:
        """Return the stream of an id, as it is now; None if it was deleted."""
        real_id, partition = real_ids(stream_id)
        state = self.node.image.streams.get(real_id)
        return state if state is None or real_id == stream_id else partition_stream(state, partition)

    def shown(self, stream_id: StreamId) -> Shown | None:
        """Return what readers are shown of a stream that is led here; None: it is not."""
        return self.node.shown(*real_ids(stream_id))

    def check(self, request: Request) -> None:
        """Raise RemoteError (not_authorized) if the API's user may not ask this."""
        self.authorization.check(addressed(request))

    def read_subjects(self, state: StreamState) -> tuple[str, ...] | None:
        """Return the subjects of a stream that the API's user may read; None: all of them."""
        return self.authorization.read_subjects(self._real(state))

    def may_read(self, state: StreamState, subjects: tuple[str, ...] | None) -> bool:
        """True if the API's user may read these subjects of a stream; None: all of them."""
        return self.authorization.may_read(self._real(state), subjects)

    def _real(self, state: StreamState) -> StreamState:
        """Return the stream on which the rights are: of a partition, the one that has it."""
        return self.node.image.streams.get(real_ids(state.stream_id)[0], state)

    def led(self, name: str) -> StreamState | None:
        """Return a stream of one partition that this broker leads and the API's user may read; None: another one."""
        state = self.stream(name)
        if state is None or len(state.partitions) > 1 or state.partitions[0].leader != self.node.broker_id:
            return None
        return None if self.reading_refusal(state) is not None else state

    def pass_on(self, name: str, calls: Callable[[], Iterator[ApiCall]]) -> bool:
        """Pass on calls about a stream of one partition that another broker leads; False: this one has to answer."""
        state = self.stream(name)
        leader = None if state is None or len(state.partitions) > 1 else state.partitions[0].leader
        if leader is None or leader == self.node.broker_id:
            return False
        self._to_pass_on.setdefault(leader, []).extend(calls())
        return True

    def streams(self) -> list[StreamState]:
        """Return all streams that the API's user may see, by name; none of Penstock's own."""
        image = self.node.image
        names = sorted(name for name in image.names if not name.startswith("__"))
        seen = (image.by_name(name) for name in self.authorization.seen_names(names))
        return [state for state in seen if not state.config.is_internal]

    def reading_refusal(self, stream: StreamState | None) -> ApiError | None:
        """Return why nothing may be asked of the API now, or not these messages."""
        if self.node.access.is_guarded and self.user is None:
            return not_allowed(
                "the API has no user here: start the brokers with --jetstream-user NAME (setting jetstream_user)"
            )
        return None if stream is None else unreadable(stream)

    @property
    def authorization(self) -> Authorization:
        """Permissions of the API's user."""
        return self.node.access.of(self.user)

    @property
    def user(self) -> Principal | None:
        """The user that all callers act as; None: no user, which may do everything without authentication."""
        user = None if self.rights.user is None else self.node.image.users.get(self.rights.user)
        return None if user is None else Principal(user.name, user.made_index)

    # Inside

    def _parsed(self, subject: str) -> ApiSubject:
        return parse_api_subject(subject, self._prefixes) or ApiSubject("", "")

    def _add(self, group: MessageGroup, hops: int, now: Now) -> None:
        """Queue requests; serve the first ones at once, and refuse what does not fit."""
        is_first = not self._queue
        begin = 0 if self._is_stopping else self._queue.add(group, hops, now.wall_us)
        if begin < len(group):
            why = stopping() if self._is_stopping else too_many_requests()
            self._try(partial(self._refuse_rows, ApiRows(group, begin, len(group), hops, now.wall_us), now, why))
        if is_first:
            self._turn(now)

    def _serve(self, now: Now) -> None:
        """Serve requests for about SLICE_US, oldest first."""
        queue, left_us = self._queue, SLICE_US
        if not queue.calls and (taken := queue.take_rows()) is not None:
            self._make_calls(taken, now)
        while left_us > 0 and (queue.calls or self._has_confirmed):
            is_confirmed = self._has_confirmed
            call = self._unconfirmed.popleft()[1] if is_confirmed else queue.calls.popleft()
            try:
                left_us -= (
                    self._execute(call, self._parsed(call.subject), now) if is_confirmed else self._take(call, now)
                )
            except Exception as bug:  # noqa: BLE001 (raised at the end of the event)
                self.note_bug(bug)
                self.refuse(call, self._parsed(call.subject), internal_error())
        self._try(partial(self.lookups.ask_gets, now))
        self._try(self._send_passed_on)

    def _make_calls(self, rows: ApiRows, now: Now) -> None:
        """Take the plain gets, and make calls of the other rows."""
        try:
            others: Iterable[int] = self.lookups.take_gets(
                rows, self._answering(rows, now), self.node.api_lease_us, now
            )
        except Exception as bug:  # noqa: BLE001 (raised at the end of the event)
            self.note_bug(bug)
            others = range(rows.begin, rows.end)  # each by itself; some get a second answer, which clients ignore
        for row in others:
            try:
                if (call := self._call(rows, row, now)) is not None:
                    self._queue.calls.append(call)
            except Exception as bug:  # noqa: BLE001 (raised at the end of the event; it waits for no answer)
                self.note_bug(bug)

    def _answering(self, rows: ApiRows, now: Now) -> list[PrefixOwnership]:
        """Return the prefixes whose requests may be answered now."""
        owners, lease_us = self._ownership.prefixes, self.node.api_lease_us
        return [owner for owner in owners.values() if rows.hops or owner.may_answer(now, lease_us)]

    def _call(self, rows: ApiRows, row: int, now: Now) -> ApiCall | None:
        """Return the request of a row; None: it is none, and taken."""
        group, hops = rows.group, rows.hops
        subject, headers = group.subject(row).decode(errors="replace"), group.headers(row)
        if self._ownership.hears(subject, headers, now):
            return None
        if (reply := group.reply(row) or group.early(row)) is None:
            for part in self.parts:
                part.heard(subject, now)
            return None
        owner = self._ownership.prefixes.get(self._parsed(subject).prefix)
        if owner is None or not (hops or owner.may_answer(now, self.node.api_lease_us)):
            return None
        return ApiCall(subject, reply, headers, group.value(row) or b"", hops, rows.received_us)

    def _refuse_rows(self, rows: ApiRows, now: Now, why: ApiError) -> None:
        """Refuse requests without a look at them. A refused probe would look like the answer of another service.

        As with answers, a broker whose lease has run out says nothing: another one may serve the API.
        """
        refused, probe = rows.end - rows.begin, PROBE_HEADER.encode()
        names = [owner.prefix for owner in self._answering(rows, now)]
        prefixes = [name.encode() for name in names]
        statuses = [f"{name}{operation}.".encode() for name in names for operation in _OF_STATUSES]
        block, error = status(why.code, why.description), error_answer("ERROR", why.code, why.err_code, why.description)
        for first in range(rows.begin, rows.end, ROWS_AT_ONCE):
            end = min(first + ROWS_AT_ONCE, rows.end)
            commands, others = refuse_rows(rows.group, first, end, prefixes, statuses, block, error, probe)
            if commands:
                self.send(commands)
            for row in others:
                if (call := self._call(rows, row, now)) is None:
                    refused -= 1
                elif self._is_probe(call):
                    refused -= 1
                    self._answer_probe(call)
                else:
                    self.send(publish_command(call.reply, error))
        self.errors["", why.err_code] += refused

    def _is_probe(self, call: ApiCall) -> bool:
        """True if a broker asks who serves the prefix."""
        has_header = call.headers is not None and PROBE_HEADER.encode() in call.headers
        return has_header and self._parsed(call.subject).operation == "INFO"

    def _answer_probe(self, call: ApiCall) -> None:
        self.answer(call, json_answer("INFO"), answer_headers({CLUSTER_HEADER: self.node.cluster_id}))

    def _take(self, call: ApiCall, now: Now) -> int:
        """Take one request; return how long that takes, about, in µs of the event loop."""
        subject = self._parsed(call.subject)
        if self._is_probe(call):
            self._answer_probe(call)
            return _CALL_US
        if subject.operation not in self.handlers:
            if (instead := NOT_SERVED.get(subject.operation)) is not None:
                self.refuse(call, subject, not_served(subject.operation, instead))
            return _CALL_US  # otherwise as a nats-server without that operation: silence
        self.requests[subject.operation] += call.hops == 0
        if now.wall_us - call.received_us > QUEUED_US_MAX and subject.operation not in _PATIENT:
            self.refuse(call, subject, too_many_requests())
            return _NOTED_US
        if not self._needs_newest(subject) or self._is_confirmed(now.elapsed_us):
            return self._execute(call, subject, now)
        if (refusal := self._refusal(call, subject)) is not None:
            self.refuse(call, subject, refusal)
        elif len(self._unconfirmed) < UNCONFIRMED_MAX:
            self._unconfirmed.append((now.elapsed_us, call))
            self._confirm(now)
        else:
            self.refuse(call, subject, too_many_requests())
        return _CALL_US

    def _needs_newest(self, subject: ApiSubject) -> bool:
        """True if an image that lacks the last changes may give a wrong answer.

        A stream that may not be seen is as one that there is not, also in how long it takes to say so.
        """
        if subject.operation in _OF_ALL:
            return True
        is_known = not subject.stream or self.stream(subject.stream) is not None
        return is_known is (subject.operation == "STREAM.CREATE")  # the metadata leader knows if it is new

    def _is_confirmed(self, since_us: int) -> bool:
        """True if the image has all changes of streams from before a time."""
        confirmed_us = self.node.confirmed_us
        return confirmed_us is not None and confirmed_us >= since_us

    @property
    def _has_confirmed(self) -> bool:
        """True if a request that waits can go on."""
        return bool(self._unconfirmed) and self._is_confirmed(self._unconfirmed[0][0])

    @property
    def _is_to_confirm(self) -> bool:
        """True if a request has come since the metadata leader was asked."""
        return bool(self._unconfirmed) and self._unconfirmed[-1][0] > self._confirmed_by_us

    def _confirm(self, now: Now) -> None:
        """Ask the metadata leader, unless it was asked just now: then `tick` does."""
        if self._is_to_confirm and self.node.confirm_soon(now):
            self._confirmed_by_us = now.elapsed_us

    def _refuse_unconfirmed(self, now: Now) -> None:
        """Refuse requests that have waited for too long."""
        while self._unconfirmed and not self._has_confirmed:
            since_us, call = self._unconfirmed[0]
            if since_us + TIMEOUT_US > now.elapsed_us:
                return
            self._unconfirmed.popleft()
            self.refuse(call, self._parsed(call.subject), _UNCONFIRMED)

    def _execute(self, call: ApiCall, subject: ApiSubject, now: Now) -> int:
        handler, noted = self.handlers[subject.operation], self.lookups.noted
        if (refusal := self._refusal(call, subject)) is not None:
            self.refuse(call, subject, refusal)
            return _CALL_US
        stream = self.stream(subject.stream)
        is_here = stream is None or subject.operation in _ANYWHERE
        if stream is None or is_here or (leader := stream.partitions[0].leader) == self.node.broker_id:
            handler(call, subject, now)
        elif leader is not None and call.hops < HOPS_MAX:
            self._to_pass_on.setdefault(leader, []).append(msgspec.structs.replace(call, hops=call.hops + 1))
        else:
            self.refuse(call, subject, unavailable("the stream has no leader at the moment; ask again"))
        if subject.operation in _LISTS:
            return _CALL_US + _LISTED_US * len(self.node.image.names)
        if self.lookups.noted > noted:
            return _NOTED_US
        return _QUICK_US.get(subject.operation, _CALL_US)

    def _refusal(self, call: ApiCall, subject: ApiSubject) -> ApiError | None:
        """Return why the call is not even tried."""
        if (size := len(call.payload) + len(call.headers or b"")) > REQUEST_BYTES_MAX:
            return invalid_json(f"it has {size} bytes; the limit is {REQUEST_BYTES_MAX}")
        if subject.operation in _MANAGING and not self.rights.may_manage:
            return not_allowed("the API only reads here, until the brokers are started with --jetstream-rights manage")
        stream = self.stream(subject.stream)
        is_partition = stream is not None and is_partition_stream(stream)
        if is_partition and subject.operation in _MANAGING and subject.operation != "STREAM.CREATE":
            return invalid_config(f"stream {subject.stream} is a partition of another stream, and can only be read")
        if (refusal := self.reading_refusal(stream if subject.operation in _READING else None)) is not None:
            return refusal
        if call.headers is not None and _asks_for_too_much(call.headers):
            is_direct = subject.operation == "DIRECT.GET"
            return ApiError(412, 10185, "Required Api Level" if is_direct else "JetStream minimum api level required")
        return None

    def _send_passed_on(self) -> None:
        passed, self._to_pass_on = self._to_pass_on, {}
        for leader, calls in passed.items():
            told = partial(self._passed, calls)
            self.node.ask_peer(leader, PassApiCallsRequest(), told, msgspec.msgpack.encode(calls))

    def _passed(self, calls: list[ApiCall], response: Response | RemoteError, _: bytes | memoryview) -> None:
        """Refuse calls that the other broker has not taken; it has taken them if the error is a bug in one of them."""
        if isinstance(response, RemoteError) and response.code != ErrorCode.INTERNAL:
            for call in calls:
                why = unavailable("the stream's leader does not take the request now; ask again in a moment")
                self.refuse(call, self._parsed(call.subject), why)


def _asks_for_too_much(headers: bytes) -> bool:
    found = _REQUIRED_LEVEL.search(headers)
    return found is not None and not (re.fullmatch(rb"[+-]?\d{1,9}", found[1]) and int(found[1]) <= API_LEVEL)
