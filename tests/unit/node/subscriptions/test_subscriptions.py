"""Who is subscribed, when NATS answers late, not by name, or for a connection that has gone."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.base import limits
from penstock.base.clock import Now
from penstock.node.step import Barrier, Outbox, Subscribe, Unsubscribe
from penstock.node.subscriptions.subscriptions import SubscriptionListener, Subscriptions

NOW = Now(0, 0)


@dataclass(eq=False)
class Listener:
    """Who wants to listen."""

    subject: str
    sid: int = 0
    queue: str | None = None
    channel: str | None = None
    more: tuple[str, ...] = ()

    @property
    def subjects(self) -> tuple[str, ...]:
        return (self.subject, *self.more)


class Recorder:
    """Subscriptions and the verdicts that came of them."""

    def __init__(self) -> None:
        self.outbox = Outbox()
        self.confirmed: list[int] = []
        self.refused: list[int] = []
        self.partly: list[int] = []
        self.settled = 0
        self.core: Subscriptions[Listener] = Subscriptions(
            self.outbox,
            SubscriptionListener(
                confirmed=lambda listener, now: self.confirmed.append(listener.sid),
                refused=lambda listener, subject, reason, now: self.refused.append(listener.sid),
                partly=lambda listener, now: self.partly.append(listener.sid),
                settled=self._settled,
            ),
        )

    def _settled(self, now: Now) -> None:
        self.settled += 1

    def tokens(self) -> list[int]:
        """The barriers of what is to be done now."""
        return [one.token for one in self.outbox.take().nats if isinstance(one, Barrier)]

    def listen(self, count: int = 1) -> list[Listener]:
        """So many more; their ids count on."""
        listeners = [Listener("x") for _ in range(count)]
        for listener in listeners:
            self.core.add(listener)
        return listeners

    def connect(self, count: int = 0) -> None:
        """Settled, with so many."""
        self.listen(count)
        self.core.up()
        for token in self.tokens():
            self.core.reached(token, NOW)


def test_a_nameless_refusal_is_about_the_oldest_that_waits() -> None:
    seen = Recorder()
    seen.connect(1)
    seen.listen(2)
    second, third = seen.tokens()
    seen.core.reached(second, NOW)
    seen.core.refused(None, "too many", NOW)
    seen.core.reached(third, NOW)
    assert (seen.confirmed, seen.refused) == ([1, 2], [3])


def test_nobody_is_confirmed_while_it_is_unclear_who_was_refused() -> None:
    seen = Recorder()
    seen.listen(3)
    seen.core.refused(None, "too many", NOW)
    seen.core.up()
    (proof,) = seen.tokens()
    seen.core.reached(proof, NOW)
    assert (seen.confirmed, seen.settled) == ([], 0)
    first, second, third = seen.tokens()
    seen.core.reached(first, NOW)
    seen.core.refused(None, "too many", NOW)
    seen.core.reached(second, NOW)
    seen.core.reached(third, NOW)
    assert (seen.confirmed, seen.refused, seen.settled) == ([1, 3], [2], 1)


def test_an_answer_of_an_earlier_connection_confirms_nothing() -> None:
    seen = Recorder()
    seen.listen()
    seen.core.up()
    (old,) = seen.tokens()
    seen.core.lost()
    seen.core.up()
    (new,) = seen.tokens()
    seen.core.reached(old, NOW)
    assert seen.confirmed == []
    seen.core.reached(new, NOW)
    assert (seen.confirmed, seen.settled) == ([1], 1)


def test_who_was_removed_gets_no_verdict() -> None:
    seen = Recorder()
    seen.connect()
    one, _ = seen.listen(2)
    seen.core.remove(one)
    first, second = seen.tokens()
    seen.core.refused(None, "too many", NOW)
    seen.core.reached(first, NOW)
    seen.core.reached(second, NOW)
    assert (seen.confirmed, seen.refused) == ([2], [])


def test_few_are_asked_for_at_once() -> None:
    seen = Recorder()
    count = limits.NATS_SUBSCRIBES_ASKED_MAX + 5
    seen.connect()
    seen.listen(count)
    while commands := seen.outbox.take().nats:
        assert sum(isinstance(one, Subscribe) for one in commands) <= limits.NATS_SUBSCRIBES_ASKED_MAX
        for one in commands:
            if isinstance(one, Barrier):
                seen.core.reached(one.token, NOW)
    assert seen.confirmed == list(range(1, count + 1))


def test_whose_turn_had_not_come_is_subscribed_by_the_next_connection() -> None:
    seen = Recorder()
    last = limits.NATS_SUBSCRIBES_ASKED_MAX + 5
    seen.connect()
    seen.core.remove(seen.listen(last)[-1])
    seen.core.lost()
    given: list[int] = []  # what the link subscribes; it takes no id twice
    for one in seen.outbox.take().nats:
        if isinstance(one, Subscribe):
            assert one.sid not in given
            given.append(one.sid)
        elif isinstance(one, Unsubscribe) and one.sid in given:
            given.remove(one.sid)
    seen.core.up()
    (proof,) = seen.tokens()
    seen.core.reached(proof, NOW)
    assert sorted(seen.confirmed) == sorted(given) == list(range(1, last))


def test_what_waits_to_be_asked_for_again_is_given_once_when_the_link_is_lost() -> None:
    seen = Recorder()
    count = limits.NATS_SUBSCRIBES_ASKED_MAX + 5
    seen.listen(count)
    seen.core.refused(None, "too many", NOW)
    seen.core.up()
    (proof,) = seen.tokens()
    seen.core.reached(proof, NOW)  # all of them, one by one; the link has every one already
    seen.core.lost()
    held = set(range(1, count + 1))
    for one in seen.outbox.take().nats:
        if isinstance(one, Subscribe):
            assert one.sid not in held
            held.add(one.sid)
        elif isinstance(one, Unsubscribe):
            held.discard(one.sid)
    assert held == set(range(1, count + 1))


def test_what_is_refused_is_asked_for_again_in_time() -> None:
    seen = Recorder()
    seen.connect(2)
    seen.core.refused(2, "permissions", NOW)
    seen.core.tick(Now(0, limits.NATS_SUBSCRIBE_RETRY_MS * 1_000 - 1))
    assert seen.tokens() == []
    seen.core.tick(Now(0, limits.NATS_SUBSCRIBE_RETRY_MS * 1_000))
    (token,) = seen.tokens()
    seen.core.reached(token, NOW)
    assert seen.confirmed == [1, 2, 2]


def test_an_id_is_never_used_again() -> None:
    """What NATS had sent for one that has ended must not reach another."""
    seen = Recorder()
    seen.connect(1)
    (second,) = seen.listen()
    seen.core.remove(second)
    (third,) = seen.listen()
    assert (second.sid, third.sid) == (2, 3)
    assert list(seen.core.by_sid) == [1, 3]
    seen.core.refused(2, "permissions", NOW)
    assert seen.refused == []


# Channels


def shared(seen: Recorder) -> Listener:
    """One more who hears the same subject as the others."""
    listener = Listener("x", channel="s")
    seen.core.add(listener)
    return listener


def subscribed(seen: Recorder) -> tuple[list[int], list[int]]:
    """The subscriptions that are asked for now, and the barriers."""
    commands = seen.outbox.take().nats
    return [one.sid for one in commands if isinstance(one, Subscribe)], [
        one.token for one in commands if isinstance(one, Barrier)
    ]


def test_who_hears_the_same_shares_a_subscription_and_joins_it_behind_a_barrier() -> None:
    seen = Recorder()
    seen.connect()
    first = shared(seen)
    (sid,), (barrier,) = subscribed(seen)
    channel = seen.core.channels[sid]
    assert channel.members == {first: True}  # nobody heard before it asked
    seen.core.reached(barrier, NOW)
    second = shared(seen)
    asked, (barrier,) = subscribed(seen)
    assert asked == []
    assert channel.members == {first: True, second: False}
    assert seen.confirmed == [first.sid]
    channel.note = "what follows from these members"
    seen.core.reached(barrier, NOW)
    assert channel.members == {first: True, second: True}
    assert channel.note is None
    assert seen.confirmed == [first.sid, second.sid]


def test_the_last_of_a_channel_ends_its_subscription() -> None:
    seen = Recorder()
    seen.connect()
    first, second = shared(seen), shared(seen)
    (sid,), _ = subscribed(seen)
    seen.core.remove(first)
    assert seen.outbox.take().nats == []
    seen.core.remove(second)
    assert seen.outbox.take().nats == [Unsubscribe(sid)]
    assert not seen.core.channels
    assert not seen.core.by_sid


def test_what_is_refused_to_a_channel_is_refused_to_all_and_asked_for_once_more() -> None:
    seen = Recorder()
    seen.connect()
    members = [shared(seen) for _ in range(3)]
    (sid,), tokens = subscribed(seen)
    seen.core.refused(sid, "forbidden", NOW)
    assert seen.refused == [one.sid for one in members]
    for token in tokens:
        seen.core.reached(token, NOW)
    assert seen.confirmed == []
    seen.core.tick(Now(0, limits.NATS_SUBSCRIBE_RETRY_MS * 1_000))
    asked, tokens = subscribed(seen)
    assert asked == [sid]
    for token in tokens:
        seen.core.reached(token, NOW)
    assert seen.confirmed == [one.sid for one in members]


def test_a_connection_that_is_lost_takes_the_wait_of_who_joins_with_it() -> None:
    seen = Recorder()
    seen.connect()
    first = shared(seen)
    (sid,), (barrier,) = subscribed(seen)
    seen.core.reached(barrier, NOW)
    second = shared(seen)
    seen.core.lost()
    seen.outbox.take()
    assert seen.core.channels[sid].members == {first: True, second: True}
    seen.core.up()
    (proof,) = seen.tokens()
    seen.core.reached(proof, NOW)
    assert seen.confirmed[1:] == [first.sid, second.sid]


def _nats(seen: Recorder) -> tuple[list[tuple[int, str]], list[int], list[int]]:
    """What is to be done now: subscriptions, ended ones, barriers."""
    commands = seen.outbox.take().nats
    return (
        [(one.sid, one.subject) for one in commands if isinstance(one, Subscribe)],
        [one.sid for one in commands if isinstance(one, Unsubscribe)],
        [one.token for one in commands if isinstance(one, Barrier)],
    )


def test_each_subject_has_a_subscription_and_all_have_the_id_of_the_listener() -> None:
    seen = Recorder()
    seen.connect()
    one = Listener("a", more=("b", "c"))
    seen.core.add(one)
    subscribed, _, tokens = _nats(seen)
    assert [subject for _, subject in subscribed] == ["a", "b", "c"]
    assert len({sid for sid, _ in subscribed}) == 3
    assert {sid & 0xFFFF_FFFF for sid, _ in subscribed} == {one.sid}
    for token in tokens:
        assert seen.confirmed == []
        seen.core.reached(token, NOW)
    assert seen.confirmed == [one.sid]


def test_a_change_of_subjects_touches_only_these_and_is_confirmed_by_a_barrier() -> None:
    seen = Recorder()
    seen.connect()
    one = Listener("a", more=("b",))
    seen.core.add(one)
    subscribed, _, tokens = _nats(seen)
    ids = {subject: sid for sid, subject in subscribed}
    for token in tokens:
        seen.core.reached(token, NOW)
    before = one.sid
    one.subject, one.more = "b", ("c",)
    assert seen.core.move_if_due(one)
    assert not seen.core.move_if_due(one)
    (added,), ended, (token,) = _nats(seen)
    assert (added[1], one.sid) == ("c", before)
    assert ids["a"] in ended
    assert ids["b"] not in (*ended, added[0])
    seen.core.reached(token, NOW)
    assert seen.confirmed == [before, before]
    one.more = ()
    assert seen.core.move_if_due(one)
    none, ended, (token,) = _nats(seen)
    assert (none, ended) == ([], [added[0]])
    seen.core.reached(token, NOW)
    assert seen.confirmed == [before] * 3
    seen.core.remove(one)
    assert _nats(seen) == ([], [ids["b"]], [])


def test_a_refused_subject_leaves_the_others_and_is_asked_for_again() -> None:
    seen = Recorder()
    seen.connect()
    one = Listener("a", more=("b",))
    seen.core.add(one)
    subscribed, _, (first, second) = _nats(seen)
    seen.core.refused(subscribed[1][0], "no", NOW)
    seen.core.reached(first, NOW)
    seen.core.reached(second, NOW)
    assert (seen.confirmed, seen.refused, seen.partly) == ([], [one.sid], [one.sid])
    assert seen.core.refused_of(one) == ["b"]
    later = Now(0, limits.NATS_SUBSCRIBE_RETRY_MS * 1_000)
    seen.core.tick(later)
    (again,), _, (token,) = _nats(seen)
    assert again == subscribed[1]
    seen.core.reached(token, later)
    assert seen.confirmed == [one.sid]


def test_a_refused_subject_that_is_removed_is_not_waited_for() -> None:
    seen = Recorder()
    seen.connect()
    one = Listener("a", more=("b",))
    seen.core.add(one)
    subscribed, _, tokens = _nats(seen)
    seen.core.refused(subscribed[1][0], "no", NOW)
    for token in tokens:
        seen.core.reached(token, NOW)
    one.more = ()
    assert seen.core.move_if_due(one)
    _, _, (token,) = _nats(seen)
    seen.core.reached(token, NOW)
    assert (seen.confirmed, seen.core.refused_of(one)) == ([one.sid], [])


def test_all_members_of_a_channel_share_each_subject() -> None:
    seen = Recorder()
    seen.connect()
    one, two = (Listener("a", channel="s", more=("b",)) for _ in range(2))
    seen.core.add(one)
    seen.core.add(two)
    subscribed, _, tokens = _nats(seen)
    assert [subject for _, subject in subscribed] == ["a", "b"]
    (channel,) = seen.core.channels.values()
    assert {sid & 0xFFFF_FFFF for sid, _ in subscribed} == {channel.sid}
    for token in tokens:
        seen.core.reached(token, NOW)
    assert seen.confirmed == [one.sid, two.sid]
    for listener in (one, two):
        listener.more = ("c",)
        assert seen.core.move_if_due(listener)
    added, ended, tokens = _nats(seen)
    assert [subject for _, subject in added] == ["c"]
    assert subscribed[1][0] in ended
    for token in tokens:
        seen.core.reached(token, NOW)
    assert seen.confirmed == [one.sid, two.sid] * 2
    assert channel.members == {one: True, two: True}


def test_a_subject_that_is_changed_while_nats_is_away_is_confirmed_by_the_next_connection() -> None:
    seen = Recorder()
    one = Listener("a", more=("b",))
    seen.core.add(one)
    one.subject, one.more = "b", ("c",)
    assert seen.core.move_if_due(one)
    link: dict[int, str] = {}  # what the link subscribes once it is connected
    for command in seen.outbox.take().nats:
        assert not isinstance(command, Barrier)
        if isinstance(command, Subscribe):
            link[command.sid] = command.subject
        else:
            del link[command.sid]
    assert sorted(link.values()) == ["b", "c"]
    seen.core.up()
    (token,) = seen.tokens()
    seen.core.reached(token, NOW)
    assert seen.confirmed == [one.sid]


def test_an_old_barrier_says_nothing_of_a_listener_that_was_added_again() -> None:
    seen = Recorder()
    seen.connect()
    (one,) = seen.listen()
    (old,) = seen.tokens()
    seen.core.remove(one)
    seen.core.add(one)
    (new,) = seen.tokens()
    seen.core.reached(old, NOW)
    assert seen.confirmed == []
    seen.core.reached(new, NOW)
    assert seen.confirmed == [one.sid]
