"""Whatever brokers say, a request ends in time, asks nobody twice without a pause, and is stored once or not at all."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base.config import StreamConfig
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import BrokerId, LeaderEpoch, Offset, PartitionId, PartitionKey, StreamId
from penstock.client.errors import OutcomeUnknown, TimedOut, Unavailable
from penstock.client.link.attempts import Ask, Attempts, GiveUp, Pause, Refresh
from penstock.client.link.cluster import ClusterView
from penstock.messages import BrokerInfo, HelloResponse, PartitionInfo, StreamInfo
from tests.extent import examples

ADDRESSES = ("a", "b", "c")
KEY = PartitionKey(StreamId(7), PartitionId(0))
TIME_S = 5.0
ANSWER_S = 0.01  # what each answer takes

MAY_BE_STORED = ["timed_out", "fenced_epoch", "unknown_epoch", "broker_unavailable", "internal", "newer_than_we_are"]
codes = st.one_of(
    st.just("not_leader"),
    st.sampled_from(MAY_BE_STORED),
    st.sampled_from([str(code) for code in ErrorCode]),
)
leaders = st.sampled_from([None, 1, 2, 3, 4])
epochs = st.integers(1, 6)
details = st.fixed_dictionaries(
    {},
    optional={
        "leader": st.one_of(leaders, st.just("x"), st.just(-1), st.just(True)),
        "address": st.one_of(st.sampled_from([*ADDRESSES, "d", "", ":", "@"]), st.none(), st.just(7)),
        "leader_epoch": st.one_of(epochs, st.just(-1), st.just("1"), st.none()),
    },
)
outcomes = st.one_of(
    st.just(("unreachable",)),
    st.tuples(st.just("lost"), st.booleans()),
    st.tuples(st.just("refused"), codes, details),
)
refreshes = st.one_of(st.none(), st.tuples(st.sampled_from(ADDRESSES), leaders, epochs, st.booleans()))


def test_what_passes_is_told_alike_whether_it_came_last_or_a_moment_earlier() -> None:
    """A refusal that passes (not ready yet) in the last milliseconds ends as a time-out, and says what was said."""
    for now_s in (TIME_S - 0.01, TIME_S - 0.001):
        view = ClusterView(ADDRESSES[:1], Random(1).random)
        attempts = Attempts(view, None, what="work", repeatable=True, deadline_s=TIME_S, chance=Random(1).random)
        attempts.refused("a", RemoteError(ErrorCode.NOT_YET, "its log is being opened"), now_s)
        action = attempts.next(now_s)
        assert isinstance(action, GiveUp)
        assert isinstance(action.error, TimedOut)
        assert "its log is being opened" in str(action.error)


def told(leader: int | None, epoch: int) -> StreamInfo:
    zero = Offset(0)
    partition = PartitionInfo(
        leader_id=None if leader is None else BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        replicas=(BrokerId(1),),
        log_start=zero,
        committed_end=zero,
        log_end=zero,
    )
    return StreamInfo(stream_id=KEY.stream_id, config=StreamConfig(name="s", subject="s"), partitions=(partition,))


def hello(broker_id: int) -> HelloResponse:
    return HelloResponse(broker_id=BrokerId(broker_id), broker_version="v", cluster_id="C", format_version=1)


@settings(max_examples=examples(500))
@given(st.data(), st.booleans(), st.booleans(), st.integers(1, 3))
def test_a_request_ends_in_time_and_is_stored_once_at_most(
    data: st.DataObject, about_a_partition: bool, repeatable: bool, server_count: int
) -> None:
    chance = st.floats(0, 1, exclude_max=True)
    view = ClusterView(ADDRESSES[:server_count], lambda: data.draw(chance))
    key = KEY if about_a_partition else None
    now_s = 0.0
    attempts = Attempts(
        view, key, what="work", repeatable=repeatable, deadline_s=TIME_S, chance=lambda: data.draw(chance)
    )
    asked: list[str] = []  # since the last pause
    ever: set[str] = set()
    broke = False
    while True:
        known = view.leader(KEY)
        match attempts.next(now_s):
            case Ask(address):
                assert now_s < TIME_S
                assert address not in asked or (asked.count(address) == 1 and broke)
                asked.append(address)
                ever.add(address)
                now_s += ANSWER_S
                match data.draw(outcomes):
                    case ("unreachable",):
                        attempts.unreachable(address, Unavailable(f"nothing at {address}"), now_s)
                    case ("lost", sent):
                        broke = True
                        attempts.lost(address, Unavailable("it broke"), now_s, sent=sent)
                        if sent and not repeatable:
                            assert isinstance(attempts.next(now_s), GiveUp)
                    case ("refused", code, fields):
                        if data.draw(st.booleans()) and address in ADDRESSES:
                            view.greeted(address, hello(ADDRESSES.index(address) + 1))
                        attempts.refused(address, RemoteError(code, "no", **fields), now_s)
                        if not repeatable and code in MAY_BE_STORED:
                            assert isinstance(attempts.next(now_s), GiveUp)
            case Refresh():
                assert key is not None
                if (news := data.draw(refreshes)) is not None:
                    address, leader, epoch, with_brokers = news
                    infos = [BrokerInfo(broker_id=BrokerId(n + 1), address=at) for n, at in enumerate(ADDRESSES)]
                    view.learn_brokers(infos if with_brokers else [], now_s)
                    view.learn_stream(told(leader, epoch), address, now_s)
            case Pause(seconds):
                assert 0 < seconds <= 2.0
                assert now_s + seconds < TIME_S
                now_s += seconds
                asked.clear()
                broke = False
            case GiveUp(error):
                assert now_s <= TIME_S + ANSWER_S
                assert isinstance(error, RemoteError | Unavailable | OutcomeUnknown)
                break
        after = view.leader(KEY)
        assert known is None or (after is not None and after.leader_epoch >= known.leader_epoch)


def test_a_broker_that_is_doubted_is_not_asked_twice_without_a_pause() -> None:
    """Who was asked next was drawn twice: once to see that it is another broker, and once more to ask it."""
    for seed in range(200):
        chance = Random(seed)
        view = ClusterView(ADDRESSES[:3], chance.random)
        attempts = Attempts(view, KEY, what="work", repeatable=False, deadline_s=TIME_S, chance=chance.random)
        assert isinstance(attempts.next(0.0), Refresh)
        first = attempts.next(0.0)
        assert isinstance(first, Ask)
        view.greeted(first.address, hello(1))
        attempts.refused(first.address, RemoteError(ErrorCode.STREAM_CHANGED, "no"), ANSWER_S)
        assert isinstance(attempts.next(ANSWER_S), Refresh)
        match attempts.next(ANSWER_S):
            case Ask(address):
                assert address != first.address, seed
            case other:
                assert isinstance(other, GiveUp | Pause)
