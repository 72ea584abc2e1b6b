"""Conversations without an answer: asks their questions, again where that helps, and ends each within its time.

Rules: a conversation ends once, with the answer of its call, a refusal, or the error of a bug. It has TIMEOUT_US for
all its questions; what an optional one lacks by then is left out.

    begin ──▶ asks ──all answered──▶ goes on ──▶ asks … ──▶ answer
                │ ▲                     ╰──────refused, a bug, the broker stops──▶ refusal
                ╰─╯ `not_yet`, after _RETRY_US
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from penstock.base.clock import Now
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId
from penstock.jetstream.conversations import Answered, Asked, Conversation, Deed, Question
from penstock.jetstream.errors import (
    ApiError,
    api_error,
    internal_error,
    stopping,
    too_many_requests,
    unavailable,
)
from penstock.jetstream.node_access import Heard
from penstock.jetstream.partition_streams import addressed
from penstock.messages import Request, Response
from penstock.node.step import Payload

if TYPE_CHECKING:
    from penstock.jetstream.gateway import Gateway

CONVERSATIONS_MAX = 1_000
"""Requests under way at one broker, each with its payload of at most REQUEST_BYTES_MAX."""
TIMEOUT_US = 4_500_000
"""For the answer to a request: clients wait for 5 s."""
_LAST_US = 300_000  # for the rest, without an answer to an optional question
_RETRY_US = 50_000


@dataclass(slots=True, eq=False)
class OpenConversation:
    """A conversation without an answer."""

    end: Callable[[bytes | ApiError], None]  # answers the call, or refuses it
    conversation: Conversation
    deadline_us: int
    questions: Asked = ()
    answers: list[Answered | None] = field(default_factory=list)
    retry_us: int | None = None  # when the questions without an answer are asked again


class OpenConversations:
    """The conversations of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.open: dict[OpenConversation, None] = {}

    def begin(self, end: Callable[[bytes | ApiError], None], now: Now, conversation: Conversation) -> None:
        """Have `end` called once with what the conversation returns, or its refusal; perhaps before this returns."""
        if len(self.open) >= CONVERSATIONS_MAX:
            conversation.close()
            end(too_many_requests())
            return
        one = OpenConversation(end, conversation, now.elapsed_us + TIMEOUT_US)
        self.open[one] = None
        self._go_on(one, None, now)

    def tick(self, now: Now) -> None:
        """Ask again what could not be answered yet, and refuse what has waited for too long."""
        for one in list(self.open):
            if now.elapsed_us >= one.deadline_us and all(question.is_optional for question in one.questions):
                one.deadline_us += _LAST_US
                late = RemoteError(ErrorCode.TIMED_OUT, "no answer in time")
                self._go_on(one, [answer or Answered(late) for answer in one.answers], now)
            elif now.elapsed_us >= one.deadline_us:
                self._end(one, unavailable("no answer in time; ask again in a moment"))
            elif one.retry_us is not None and now.elapsed_us >= one.retry_us:
                one.retry_us = None
                self._ask_missing(one, now)

    @property
    def next_deadline_us(self) -> int | None:
        """Latest time at which `tick` must run."""
        dues = [one.deadline_us if one.retry_us is None else one.retry_us for one in self.open]
        return min(dues, default=None)

    def shut_down(self) -> None:
        """The broker stops: refuse what is under way."""
        for one in list(self.open):
            self._end(one, stopping())

    # Inside

    def _go_on(self, one: OpenConversation, answers: list[Answered] | None, now: Now) -> None:
        """Pass the answers to the conversation, and ask what it asks next, or answer the call.

        A call is no event of the node, whose time may be some hundred milliseconds old.
        """
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
        except Exception as bug:  # noqa: BLE001 (raised at the end of the event)
            self._gateway.note_bug(bug)
            self._end(one, internal_error())
        else:
            one.questions, one.answers = questions, [None] * len(questions)
            self._ask_missing(one, now)

    def _ask_missing(self, one: OpenConversation, now: Now) -> None:
        node = self._gateway.node
        for number, question in enumerate(one.questions):
            if one.answers[number] is None:
                heard = partial(self._heard, one, number, question, one.questions)
                if isinstance(question.request, Deed):
                    _begin(question.request, partial(self._heard, one, number, question, one.questions))
                elif question.of is None or question.of == node.broker_id:
                    self._gateway.ask(question.request, now, heard)
                else:
                    self._ask_other(question.of, question.request, heard)

    def _ask_other(self, of: BrokerId, asked: Request, heard: Heard) -> None:
        """Ask another broker; the rights are checked here, for brokers may do everything there."""
        request = addressed(asked)
        try:
            self._gateway.authorization.check(request)
        except RemoteError as refusal:
            heard(refusal, None)
        else:
            self._gateway.node.ask_peer(of, request, lambda response, raw: heard(response, bytes(raw)))

    def _heard(
        self,
        one: OpenConversation,
        number: int,
        question: Question,
        questions: Asked,
        response: Response | RemoteError | None,
        payload: Payload = None,
    ) -> None:
        if one not in self.open or one.questions is not questions:
            return
        is_early = isinstance(response, RemoteError) and response.code == ErrorCode.NOT_YET
        if is_early or (question.until is not None and not question.until(response)):
            one.retry_us = self._gateway.node.now.elapsed_us + _RETRY_US
            return
        one.answers[number] = Answered(response, payload)
        if all(answer is not None for answer in one.answers):
            one.retry_us = None
            self._go_on(one, [answer for answer in one.answers if answer is not None], self._gateway.node.now)

    def _end(self, one: OpenConversation, end: bytes | ApiError) -> None:
        del self.open[one]
        one.conversation.close()
        one.end(end)


def _begin(deed: Deed, heard: Callable[[RemoteError | None], None]) -> None:
    """Do something; an error that it raises is its end."""
    try:
        deed.begin(heard)
    except RemoteError as refusal:
        heard(refusal)
