"""Subscriptions of partitions whose subjects come and go, against a nats-server that refuses some.

Whatever happens in between: the link has each wanted subject once and nothing else, and when nothing is pending any
more every listener has the verdict that nats-server has given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.base import limits
from penstock.base.clock import Now
from penstock.hot.scan import GROUP_BITS
from penstock.node.step import Barrier, Outbox, Subscribe, Unsubscribe
from penstock.node.subscriptions.subscriptions import SubscriptionListener, Subscriptions
from tests.extent import examples

_SUBJECTS = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True).map(tuple)
_FORBIDDEN = frozenset("de")


@dataclass(eq=False)
class _Listener:
    subjects: tuple[str, ...]
    channel: str | None
    sid: int = 0
    queue: str | None = None
    verdict: str = ""


class SubscriptionsMachine(RuleBasedStateMachine):
    """The listeners, the link and nats-server."""

    def __init__(self) -> None:
        super().__init__()
        self.outbox = Outbox()
        self.core: Subscriptions[_Listener] = Subscriptions(
            self.outbox, SubscriptionListener(self._confirmed, self._refused, self._partly, lambda now: None)
        )
        self.listeners: list[_Listener] = []
        self.link: dict[int, str] = {}
        self.answers: deque[Barrier | tuple[int | None, str]] = deque()
        self.is_up = False
        self.elapsed_us = self.streams = 0

    @initialize(most=st.integers(1, 4))
    def few_are_asked_at_once(self, most: int) -> None:
        self.kept, limits.NATS_SUBSCRIBES_ASKED_MAX = limits.NATS_SUBSCRIBES_ASKED_MAX, most

    def teardown(self) -> None:
        if hasattr(self, "kept"):
            try:
                self.settle()
            finally:
                limits.NATS_SUBSCRIBES_ASKED_MAX = self.kept

    def _confirmed(self, listener: _Listener, now: Now) -> None:
        # Another member of its channel may have ended subscriptions already: it is confirmed again once it has moved.
        channel = self.core.channel_of(listener)
        heard = self.core.subjects_of(listener) if channel is None else channel.ids
        assert not _FORBIDDEN & {*self.core.subjects_of(listener)} & {*heard}
        listener.verdict = "all"

    @staticmethod
    def _refused(listener: _Listener, subject: str, reason: str, now: Now) -> None:
        assert subject in _FORBIDDEN
        listener.verdict = "refused"

    def _partly(self, listener: _Listener, now: Now) -> None:
        assert not _FORBIDDEN.issuperset(self.core.subjects_of(listener))
        listener.verdict = "some"

    def _do(self) -> None:
        for one in self.outbox.take().nats:
            if isinstance(one, Subscribe):
                assert one.sid not in self.link, "the link takes no id twice"
                self.link[one.sid] = one.subject
                if self.is_up:
                    self._serve(one.sid, one.subject)
            elif isinstance(one, Unsubscribe):
                self.link.pop(one.sid, None)
            else:
                assert self.is_up
                self.answers.append(one)

    def _serve(self, sid: int, subject: str) -> None:
        if subject in _FORBIDDEN:
            # The refusal of a shared subscription is named: an unnamed one is lost with the member that asked for it.
            is_named = sid % 2 or sid & ((1 << GROUP_BITS) - 1) in self.core.channels
            self.answers.append((sid if is_named else None, subject))

    @rule(subjects=_SUBJECTS)
    def add(self, subjects: tuple[str, ...]) -> None:
        self._add(_Listener(subjects, None))

    @rule(subjects=_SUBJECTS, count=st.integers(1, 3))
    def add_channel(self, subjects: tuple[str, ...], count: int) -> None:
        self.streams += 1
        name = f"stream {self.streams}"
        for _ in range(count):
            self._add(_Listener(subjects, name))

    def _add(self, listener: _Listener) -> None:
        self.listeners.append(listener)
        self.core.add(listener)
        self._do()

    @rule(number=st.integers(0, 20), subjects=_SUBJECTS, late=st.booleans())
    def change(self, number: int, subjects: tuple[str, ...], *, late: bool) -> None:
        """The node changes all listeners of a stream, some later: those whose log is being cut."""
        if not self.listeners:
            return
        one = self.listeners[number % len(self.listeners)]
        members = [one] if one.channel is None else [each for each in self.listeners if each.channel == one.channel]
        for each in members:
            each.subjects = subjects
        self.follow([one] if late else members)

    def follow(self, listeners: list[_Listener]) -> None:
        for each in listeners:
            if self.core.move_if_due(each):
                each.verdict = ""
        self._do()

    @rule(number=st.integers(0, 20))
    def remove(self, number: int) -> None:
        if self.listeners:
            self.core.remove(self.listeners.pop(number % len(self.listeners)))
            self._do()

    @rule()
    def connect(self) -> None:
        if not self.is_up:
            self.is_up = True
            for sid, subject in self.link.items():
                self._serve(sid, subject)
            self.core.up()
            self._do()

    @rule()
    def lose(self) -> None:
        self.is_up = False
        self.answers.clear()
        for listener in self.listeners:
            listener.verdict = ""
        self.core.lost()
        self._do()

    @rule(count=st.integers(1, 5))
    def hear(self, count: int) -> None:
        for _ in range(min(count, len(self.answers))):
            answer = self.answers.popleft()
            now = Now(0, self.elapsed_us)
            if isinstance(answer, Barrier):
                self.core.reached(answer.token, now)
            elif answer[0] is None or self.link.get(answer[0]) == answer[1]:
                # Else the subscription has ended: a link finds it by its subject, and its id may be another one's.
                self.core.refused(answer[0], "no", now)
            self._do()

    @rule()
    def wait(self) -> None:
        self.elapsed_us += limits.NATS_SUBSCRIBE_RETRY_MS * 1_000
        self.core.tick(Now(0, self.elapsed_us))
        self._do()

    @invariant()
    def the_ids_are_those_of_their_owners(self) -> None:
        owners = {sid & ((1 << GROUP_BITS) - 1) for sid in self.link}
        assert owners <= {*self.core.by_sid, *self.core.channels}

    def settle(self) -> None:
        """Nothing more changes: every listener gets its verdict."""
        self.follow(self.listeners)
        self.connect()
        while self.answers:
            self.hear(1)
        if not all(listener.verdict for listener in self.listeners):
            self.wait()  # all that is left was refused before: it is asked for again
        while self.answers:
            self.hear(1)
        for listener in self.listeners:
            refused = _FORBIDDEN & {*listener.subjects}
            wanted = "all" if not refused else "some" if len(refused) < len(listener.subjects) else "refused"
            assert listener.verdict == wanted, listener
        wanted_of: dict[object, set[str]] = {}
        for listener in self.listeners:
            wanted_of[listener.channel or listener] = {*listener.subjects}
        assert sorted(self.link.values()) == sorted(subject for those in wanted_of.values() for subject in those)
        assert all(all(channel.members.values()) for channel in self.core.channels.values())


SubscriptionsMachine.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
TestSubscriptions = SubscriptionsMachine.TestCase
