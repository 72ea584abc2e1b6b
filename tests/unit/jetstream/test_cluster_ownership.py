"""Who serves JetStream's API in a cluster: one decision, by evidence of all brokers, and never longer than a lease."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.jetstream import api_queue
from penstock.messages import ReportApiRequest, StatusRequest, StatusResponse, TakeApiRequest, TakeApiResponse
from penstock.metadata.api_decisions import ApiState
from tests.groups import Message, group_of
from tests.unit.jetstream.api_broker import NO_RESPONDERS, PREFIXES, ApiBrokers, ApiMember
from tests.unit.jetstream.test_ownership import FOREIGN, OTHER_CLUSTER

DOMAIN = PREFIXES[0]
DOMAIN_ONLY = PREFIXES[:1]
TAKEN, WAITING, WITHDRAWN = ApiState.TAKEN, ApiState.WAITING, ApiState.WITHDRAWN
WATCH_MS = 5_000
LEASE_MS = limits.API_LEASE_MS


def cluster(*ids: int, **settings: Any) -> ApiBrokers:
    brokers = ApiBrokers(*(ids or (1, 2, 3)), **settings)
    brokers.run(6_000)
    assert len(brokers.leader.image.live_brokers()) == len(brokers.ids)
    return brokers


def state(brokers: ApiBrokers, prefix: str = "$JS.API.") -> ApiState:
    """The decision that all brokers have applied."""
    (found,) = {None if (one := member.decision(prefix)) is None else one.state for member in brokers.all}
    assert found is not None
    return found


def follower(brokers: ApiBrokers) -> ApiMember:
    """A broker that does not lead the metadata."""
    return next(one for one in brokers.all if one is not brokers.leader)


def take(member: ApiMember, prefix: str | None = None) -> TakeApiResponse:
    caller = member.request(TakeApiRequest(prefix=prefix))
    member.brokers.run(500)
    return member.answer(caller, TakeApiResponse)


def test_all_brokers_serve_once_all_have_evidence() -> None:
    brokers = cluster(others={3: None})
    assert state(brokers) is WAITING
    assert brokers.serving() == []
    brokers[3].others = NO_RESPONDERS
    brokers.run(60_000)
    assert state(brokers) is TAKEN
    assert brokers.serving() == brokers.serving(DOMAIN) == [1, 2, 3]
    assert brokers.asked[ReportApiRequest] > 0
    assert all(one.answers_calls() for one in brokers.all)


def test_one_broker_that_hears_another_service_is_enough_and_it_leaves_at_once() -> None:
    brokers = cluster()
    finder = follower(brokers)
    finder.others = FOREIGN
    brokers.cut(finder.broker_id, brokers.leader.broker_id)
    brokers.cut(finder.broker_id, next(one for one in brokers.all if one not in (finder, brokers.leader)).broker_id)
    for _ in range(WATCH_MS // 50):
        brokers.run(50)
        if finder.broker_id not in brokers.serving():
            break
    assert finder.broker_id not in brokers.serving()  # by its own evidence, or because its lease is over
    brokers.join(int(finder.broker_id), *(one for one in brokers.ids if one != finder.broker_id))
    brokers.run(WATCH_MS)
    assert brokers.serving() == []
    assert brokers.serving(DOMAIN) == []  # it answered there too
    assert state(brokers) is WITHDRAWN
    for one in brokers.all:
        said = f"not served as $JS.API.>: broker {finder.broker_id}: a JetStream answers there"
        assert sum(said in notice for notice in one.notices) == 1


def test_it_is_withdrawn_within_the_time_of_two_probes_and_never_taken_back() -> None:
    brokers = cluster()
    brokers[2].others = FOREIGN
    brokers.run(WATCH_MS + 100)
    assert (state(brokers), brokers.serving()) == (WITHDRAWN, [])
    brokers[2].others = NO_RESPONDERS
    brokers.run(120_000)
    for one in brokers.ids:
        brokers.start(one, brokers.kill(one))
        brokers.run(5_000)
    assert (state(brokers), brokers.serving()) == (WITHDRAWN, [])


def test_an_operator_takes_it_back_by_new_evidence() -> None:
    brokers = cluster()
    brokers[2].others = FOREIGN
    brokers.run(WATCH_MS + 100)
    asked = follower(brokers)
    take(asked)
    brokers.run(2_000)
    assert (state(brokers), brokers.serving()) == (WITHDRAWN, [])  # the other service is still there
    brokers[2].others = NO_RESPONDERS
    answer = take(asked, "$JS.API.")
    assert [(one.prefix, one.state) for one in answer.apis] == [("$JS.API.", "waiting"), (DOMAIN, "withdrawn")]
    brokers.run(2_000)
    assert brokers.serving() == [1, 2, 3]
    assert brokers.serving(DOMAIN) == []
    take(asked)
    brokers.run(2_000)
    assert brokers.serving(DOMAIN) == [1, 2, 3]
    shown = asked.ask(StatusRequest(), StatusResponse).apis
    assert [(one.prefix, one.state) for one in shown] == [("$JS.API.", "taken"), (DOMAIN, "taken")]


def test_evidence_from_before_the_request_to_take_it_back_does_not_count() -> None:
    brokers = cluster()
    brokers[2].others = FOREIGN
    brokers.run(WATCH_MS + 100)
    for one in brokers.all:
        one.others = NO_RESPONDERS
    brokers.run(120_000)  # all have found by now that nobody is there
    brokers[3].others = None
    take(brokers[1])
    brokers.run(30_000)
    assert (state(brokers), brokers.serving()) == (WAITING, [])


def test_a_prefix_that_nobody_serves_cannot_be_taken_back() -> None:
    brokers = cluster()
    caller = brokers[1].request(TakeApiRequest(prefix="$JS.elsewhere.API."))
    brokers.run(500)
    error = brokers[1].replies[caller].response
    assert isinstance(error, RemoteError)
    assert (error.code, "$JS.API., $JS.here.API." in error.message) == (ErrorCode.BAD_REQUEST, True)
    assert [one.state for one in take(brokers[1]).apis] == ["taken", "taken"]  # nothing to do


def test_the_strictest_setting_holds_and_is_told() -> None:
    brokers = cluster(prefixes={3: DOMAIN_ONLY})
    assert (brokers.serving(), brokers.serving(DOMAIN)) == ([], [1, 2, 3])
    for one in (brokers[1], brokers[2]):  # the third does not even want to
        assert any("settings jetstream_api and jetstream_domain of broker 3" in notice for notice in one.notices)
    memory = brokers.kill(3)
    brokers.run(30_000)
    assert brokers.leader.image.live_brokers() == {1, 2}
    assert brokers.serving() == []  # also while it is away
    brokers.prefixes = {}
    brokers.start(3, memory)
    brokers.run(3_000)
    assert brokers.serving() == [1, 2, 3]


def test_an_operator_takes_it_back_from_a_broker_that_is_gone_for_good() -> None:
    brokers = cluster(prefixes={3: DOMAIN_ONLY})
    brokers.kill(3)
    brokers.run(30_000)
    take(brokers[1])
    brokers.run(3_000)
    assert brokers.serving() == []  # it has to be named
    take(brokers[1], "$JS.API.")
    brokers.run(3_000)
    assert brokers.serving() == [1, 2]


def test_an_operator_takes_nothing_from_a_broker_that_is_there() -> None:
    brokers = cluster(prefixes={3: DOMAIN_ONLY})
    (before,) = {one.decision("$JS.API.") for one in brokers.all}
    take(brokers[1], "$JS.API.")
    brokers.run(3_000)
    assert {one.decision("$JS.API.") for one in brokers.all} == {before}


def test_a_broker_where_it_is_off_holds_everything_back() -> None:
    brokers = cluster()
    assert brokers.serving() == [1, 2, 3]
    memory = brokers.kill(3)
    brokers.prefixes = {3: ()}
    brokers.start(3, memory)
    brokers.run(limits.API_REPORT_AGE_MS + 1_000)
    assert (state(brokers), brokers.serving(), brokers.serving(DOMAIN)) == (WAITING, [], [])
    for one in brokers.ids:
        brokers.prefixes[one] = ()
        brokers.start(one, brokers.kill(one))
        brokers.run(5_000)
    brokers.run(limits.API_REPORT_AGE_MS + 1_000)
    assert brokers.leader.image.apis == ()  # nobody wants it


def test_a_broker_that_is_alone_and_does_not_want_to_any_more_forgets_it() -> None:
    brokers = cluster(1)
    assert brokers.serving() == [1]
    brokers.prefixes = {1: DOMAIN_ONLY}
    brokers.start(1, brokers.kill(1))
    brokers.run(limits.API_REPORT_AGE_MS + 3_000)
    assert [one.prefix for one in brokers[1].image.apis] == [DOMAIN]
    brokers.prefixes = {1: ()}
    brokers.start(1, brokers.kill(1))
    brokers.run(limits.API_REPORT_AGE_MS + 3_000)
    assert brokers[1].image.apis == ()


def test_a_broker_that_joins_with_a_jetstream_behind_its_server_ends_it_for_all() -> None:
    brokers = cluster(with_jetstream={4})
    assert brokers.serving() == [1, 2, 3]
    brokers.start(4)
    joined = brokers[4]
    brokers.run(3_000)
    assert 4 in brokers.leader.image.live_brokers()
    assert (state(brokers), brokers.serving()) == (WITHDRAWN, [])
    assert brokers.serving(DOMAIN) == [1, 2, 3, 4]
    assert any("broker 4: nats-server has JetStream itself" in notice for notice in joined.notices)


def test_no_evidence_is_not_evidence() -> None:
    brokers = cluster()
    for one in brokers.all:
        one.others = None  # nothing answers: NATS is away
    brokers.run(300_000)
    assert (state(brokers), brokers.serving()) == (TAKEN, [1, 2, 3])
    brokers.start(2, brokers.kill(2))
    brokers[2].others = None
    brokers.run(10_000)
    assert state(brokers) is TAKEN


def test_a_broker_that_starts_serves_only_after_evidence_of_its_own() -> None:
    brokers = cluster()
    memory = brokers.kill(2)
    brokers.others = {2: None}
    brokers.start(2, memory)
    brokers.run(10_000)
    assert (state(brokers), brokers.serving()) == (TAKEN, [1, 3])
    brokers[2].others = NO_RESPONDERS
    brokers.run(60_000)
    assert brokers.serving() == [1, 2, 3]


def test_without_the_metadata_leader_nobody_answers_longer_than_the_lease() -> None:
    brokers = cluster()
    away = follower(brokers)
    for other in brokers.ids:
        if other != away.broker_id:
            brokers.cut(int(away.broker_id), other)
    brokers.run(LEASE_MS - 600)  # heartbeats are 500 ms apart
    assert away.answers_calls()
    brokers.run(700)
    assert not away.answers_calls()
    assert away.broker_id not in brokers.serving()
    brokers.join(int(away.broker_id), *(one for one in brokers.ids if one != away.broker_id))
    brokers.run(2_000)
    assert away.answers_calls()


def test_a_broker_that_has_not_heard_of_the_withdrawal_stops_within_the_lease() -> None:
    brokers = cluster()
    away = follower(brokers)
    finder = next(one for one in brokers.all if one not in (away, brokers.leader))
    for other in brokers.ids:
        if other != away.broker_id:
            brokers.cut(int(away.broker_id), other)
    finder.others = FOREIGN
    brokers.run(50)
    while finder.decision().state is TAKEN:  # type: ignore[union-attr]
        brokers.run(50)
    brokers.run(LEASE_MS)
    assert away.decision().state is TAKEN  # type: ignore[union-attr]
    assert not away.answers_calls()


def test_a_metadata_leader_that_was_suspended_answers_nothing_when_it_wakes_up() -> None:
    brokers = cluster()
    paused = brokers.leader
    assert isinstance(paused, ApiMember)
    assert paused.answers_calls()
    brokers.hang(int(paused.broker_id))
    brokers.run(LEASE_MS + 3_000)  # the others have another metadata leader
    next(one for one in brokers.all if one is not paused).others = FOREIGN
    brokers.run(WATCH_MS + 3_000)
    assert paused.decision().state is TAKEN  # type: ignore[union-attr]
    assert not paused.answers_calls()  # what NATS has kept for it comes first
    brokers.wake(int(paused.broker_id))
    brokers.run(3_000)
    assert (state(brokers), brokers.serving()) == (WITHDRAWN, [])


def test_a_new_metadata_leader_does_not_decide_before_it_has_heard_all() -> None:
    brokers = cluster()
    brokers.start(1, brokers.kill(1))
    brokers.leader.quorum.hand_over(next(one for one in brokers.ids if one != brokers.leader.broker_id))
    for _ in range(400):
        brokers.run(50)
        assert all(one.decision() is None or one.decision().state is TAKEN for one in brokers.all)  # type: ignore[union-attr]
    assert brokers.serving() == [1, 2, 3]


def test_another_cluster_that_has_the_domain_is_found() -> None:
    brokers = cluster(others={1: OTHER_CLUSTER, 2: OTHER_CLUSTER, 3: OTHER_CLUSTER})
    assert (state(brokers, DOMAIN), brokers.serving(DOMAIN)) == (WITHDRAWN, [])
    assert any("another Penstock cluster answers there" in notice for notice in brokers[1].notices)


def test_below_the_feature_level_nothing_is_decided_or_served_or_asked() -> None:
    brokers = cluster(broker_version="0.3.0")
    assert brokers.leader.image.apis == ()
    assert brokers.serving() == brokers.serving(DOMAIN) == []
    brokers.run(20_000)
    assert brokers.asked[ReportApiRequest] == 0  # a metadata leader of 0.3 would not know it
    for one in brokers.all:
        assert sum("needs feature level 0.4" in notice for notice in one.notices) == 1
        assert one.gateway.is_decided
        due_us = one.gateway.next_deadline_us
        assert due_us is not None
        assert due_us > brokers.clock.elapsed_us


def test_who_may_not_answer_does_not_refuse_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what its queue has no room for, and nothing when it stops: another service may have answered."""
    monkeypatch.setattr(api_queue, "API_QUEUE_MAX", 2)
    brokers = cluster()
    away = follower(brokers)
    probe = b"NATS/1.0\r\nPenstock-Probe: 1\r\n\r\n"
    calls: list[Message] = [(b"$JS.API.STREAM.INFO.s", b"_INBOX.%d" % number, None, b"") for number in range(4)]
    calls += [(b"$JS.API.DIRECT.GET.s.x", b"_INBOX.get", None, b""), (b"$JS.API.INFO", b"_INBOX.probe", probe, b"")]
    for is_late in (False, True):
        away.gateway.messages_received(group_of(calls), away.clock.now)
        if is_late:
            away.gateway.shut_down()
        away.turn()
        told = {one for one in away.answers if one.startswith("_INBOX.")}
        assert told == (set() if is_late else {"_INBOX.2", "_INBOX.3", "_INBOX.get", "_INBOX.probe"})
        brokers.run(2_000)
        brokers.clock.advance_ms(LEASE_MS + 1_000)  # suspended
        away.answers.clear()
