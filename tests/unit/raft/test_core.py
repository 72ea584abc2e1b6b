"""The core's edges: who may call what when, what is refused, what a hostile peer cannot do."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.hot.crc import crc32c
from penstock.raft import (
    ChangeRefusedError,
    Entry,
    EntryKind,
    HardState,
    NotLeaderError,
    Raft,
    RaftConfig,
    RaftMembership,
    Snapshot,
    StoredState,
    decode_message,
    encode_message,
)
from penstock.raft.membership import encode_membership
from penstock.raft.messages import (
    AppendEntriesRequest,
    AppendEntriesResponse,
    LeadNow,
    Message,
    RaftHeartbeat,
    RaftHeartbeatResponse,
    ReadRequest,
    ReadResponse,
    SnapshotChunk,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from penstock.raft.terms import DRAWS, ROUND_MAX, names, next_term, round_of
from tests.extent import examples
from tests.unit.raft.stories import NoChance, term_of
from tests.unit.raft.test_wire import MESSAGES

FIRST, SECOND = term_of("1.1"), term_of("2.2")  # of broker 1, which leads; of broker 2
THREE = Snapshot(0, 0, RaftMembership((1, 2, 3)), b"")


def raft(broker_id: int = 1, begin: Snapshot = THREE, *entries: Entry, term: int = 0, **settings: int) -> Raft:
    return Raft(RaftConfig(broker_id, **settings), NoChance(), StoredState(HardState(term), begin, entries))


def done(broker: Raft) -> list[Message]:
    """Do all that is to be done; what is sent."""
    sent: list[Message] = []
    while broker.has_ready():
        ready = broker.ready()
        sent += ready.messages
        broker.advance(ready)
    return sent


def leader(**settings: int) -> Raft:
    """Broker 1 of three leads in the first term and has committed its first entry."""
    broker = raft(**settings)
    broker.campaign()
    broker.step(VoteResponse(2, 1, FIRST, True, True))
    broker.step(VoteResponse(2, 1, FIRST, False, True))
    done(broker)
    broker.step(AppendEntriesResponse(2, 1, FIRST, 1))
    broker.step(AppendEntriesResponse(3, 1, FIRST, 1))
    done(broker)
    assert (broker.is_leader, broker.term, broker.commit, broker.applied) == (True, FIRST, 1, 1)
    return broker


@pytest.mark.parametrize(
    "give",
    [
        lambda broker: broker.tick(),
        lambda broker: broker.step(LeadNow(2, 1, SECOND)),
        lambda broker: broker.propose(b""),
        lambda broker: broker.propose_change(RaftMembership((1, 2))),
        lambda broker: broker.read_index(b""),
        lambda broker: broker.transfer(2),
        lambda broker: broker.campaign(),
        lambda broker: broker.compact(1, b""),
        lambda broker: broker.ready(),
    ],
)
def test_no_input_between_ready_and_advance(give) -> None:
    broker = leader()
    broker.propose(b"a")
    ready = broker.ready()
    with pytest.raises(AssertionError, match="between ready"):
        give(broker)
    broker.advance(ready)
    with pytest.raises(AssertionError, match="comes first"):
        broker.advance(ready)


def test_who_does_not_lead_refuses_and_says_who_does() -> None:
    broker = raft(2)
    with pytest.raises(NotLeaderError) as caught:
        broker.propose(b"a")
    assert caught.value.leader is None
    with pytest.raises(NotLeaderError):
        broker.read_index(b"r")
    broker.step(RaftHeartbeat(1, 2, FIRST, 0, 0))
    for ask, what in ((broker.propose, b"a"), (broker.propose_change, THREE.membership), (broker.transfer, 3)):
        with pytest.raises(NotLeaderError) as caught:
            ask(what)
        assert caught.value.leader == 1
        assert caught.value.code == ErrorCode.NOT_METADATA_LEADER


def test_what_is_too_much_is_refused() -> None:
    broker = leader(uncommitted_bytes_max=1_000)
    with pytest.raises(RemoteError) as caught:
        broker.propose(bytes(limits.RAFT_ENTRY_BYTES_MAX + 1))
    assert caught.value.code == ErrorCode.TOO_LARGE
    for _ in range(10):
        broker.propose(bytes(36))
    with pytest.raises(RemoteError) as caught:
        broker.propose(bytes(36))
    assert caught.value.code == ErrorCode.OVERLOADED
    done(broker)
    broker.step(AppendEntriesResponse(2, 1, FIRST, 6))
    for _ in range(5):
        broker.propose(bytes(36))
    with pytest.raises(RemoteError):
        broker.propose(b"")


def test_too_many_reads_are_refused() -> None:
    broker = leader()
    for number in range(limits.RAFT_READS_MAX):
        broker.read_index(b"%d" % number)
    with pytest.raises(RemoteError) as caught:
        broker.read_index(b"one more")
    assert caught.value.code == ErrorCode.OVERLOADED
    sent = done(broker)
    assert [type(message) for message in sent] == [RaftHeartbeat, RaftHeartbeat]  # one round for all of them
    broker.step(RaftHeartbeatResponse(2, 1, FIRST, 1))
    assert len(broker.ready().reads) == limits.RAFT_READS_MAX


def test_a_single_voter_leads_at_once_and_changes_by_one() -> None:
    broker = raft(7, Snapshot(5, 2, RaftMembership((7,)), b"imported"), term=2)
    broker.campaign()
    done(broker)
    assert (broker.is_leader, round_of(broker.term), broker.commit) == (True, 3, 6)
    assert broker.propose(b"a") == (7, broker.term)
    with pytest.raises(ChangeRefusedError, match="there would be no voters"):
        broker.propose_change(RaftMembership(()))
    broker.propose_change(RaftMembership((7,), (8,)))
    assert broker.membership == RaftMembership((7,), (8,))


def test_the_log_of_a_single_voter_is_committed_as_it_lies_there() -> None:
    """On a full disk it cannot be elected again; what it has can be read all the same."""
    change = encode_membership(RaftMembership((1, 2)))
    alone = raft(1, Snapshot(0, 0, RaftMembership((1,), (3,)), b""), Entry(1, 1, EntryKind.COMMAND, b"a"), term=1)
    assert alone.has_ready()
    ready = alone.ready()
    assert [entry.data for entry in ready.committed] == [b"a"]
    assert not ready.must_sync
    not_alone = raft(1, Snapshot(0, 0, RaftMembership((1,)), b""), Entry(1, 1, EntryKind.MEMBERSHIP, change), term=1)
    assert not not_alone.has_ready()


def test_who_does_not_vote_does_not_stand() -> None:
    broker = raft(4, Snapshot(0, 0, RaftMembership((1, 2, 3), (4,)), b""))
    broker.campaign()
    for _ in range(100):
        broker.tick()
    assert not broker.has_ready()
    assert broker.term == 0


def test_patience_is_drawn_from_the_generator() -> None:
    ticks = set()
    for seed in range(50):
        broker = Raft(RaftConfig(1), Random(seed), StoredState(HardState(), THREE))
        count = 0
        while not broker.has_ready():
            broker.tick()
            count += 1
        ticks.add(count)
    assert ticks == set(range(10, 20))


def test_who_has_forgotten_that_it_stood_stands_in_another_term() -> None:
    """An older copy of its disk; or that copy beside it, in the other half of a partition."""
    terms = set()
    for seed in range(50):
        broker = Raft(RaftConfig(3), Random(seed), StoredState(HardState(7), THREE))
        broker.campaign()
        terms |= {message.term for message in done(broker)}
    assert len(terms) == 50
    assert {(round_of(term), names(term, 3)) for term in terms} == {(8, True)}


def test_behind_the_last_round_nobody_stands() -> None:
    broker = raft(term=next_term(ROUND_MAX - 1, 2, DRAWS - 1))
    broker.campaign()
    broker.step(LeadNow(2, 1, broker.term))
    assert not broker.has_ready()


def test_a_disk_that_stays_full_lets_nothing_pile_up() -> None:
    broker = leader()
    for number in range(100):
        broker.tick()
        broker.propose(b"a")
        broker.read_index(b"%d" % number)
        ready = broker.ready()
        assert (len(ready.entries), len(ready.messages)) == (1, 4)
        assert [entry.index for entry in broker.retract(ready)] == [2]
        broker.step(RaftHeartbeatResponse(2, 1, FIRST, number + 1))
    assert broker.is_leader
    broker.propose(b"b")
    ready = broker.ready()
    assert [entry.data for entry in ready.entries] == [b"b"]
    assert len(ready.reads) == 100
    broker.advance(ready)


def test_committed_entries_are_handed_out_in_pieces() -> None:
    broker = raft(1, Snapshot(0, 0, RaftMembership((1,)), b""), apply_bytes_max=250)
    broker.campaign()
    for _ in range(5):
        broker.propose(bytes(100))
    pieces = []
    while broker.has_ready():
        ready = broker.ready()
        pieces.append([entry.index for entry in ready.committed])
        broker.advance(ready)
    assert pieces == [[], [1, 2, 3], [4, 5], [6]]


def test_a_restart_begins_at_the_snapshot_with_the_membership_in_the_log() -> None:
    change = Entry(1, 2, EntryKind.MEMBERSHIP, encode_membership(RaftMembership((1, 2))))
    state = StoredState(HardState(1, None, 1), THREE, (Entry(1, 1, EntryKind.COMMAND, b"a"), change))
    broker = Raft(RaftConfig(1), Random(1), state)
    assert broker.membership == RaftMembership((1, 2))
    ready = broker.ready()
    assert [entry.index for entry in ready.committed] == [1]
    assert not ready.must_sync


def test_a_later_leader_takes_a_change_back() -> None:
    broker = leader()
    broker.propose_change(RaftMembership((1, 2)))
    done(broker)
    broker.step(
        AppendEntriesRequest(3, 1, term_of("2.3"), 1, FIRST, 1, (Entry(term_of("2.3"), 2, EntryKind.LEADERSHIP, b""),))
    )
    assert broker.membership == THREE.membership
    assert broker.leader == 3


@pytest.mark.parametrize(
    "message",
    [
        AppendEntriesRequest(2, 1, FIRST, 1, FIRST, 1),  # another leader of this term
        RaftHeartbeat(2, 1, FIRST, 1, 0),
        RaftHeartbeat(2, 1, 1, 1, 0),  # a term that names nobody
        AppendEntriesRequest(2, 1, term_of("2.3"), 1, FIRST, 1),  # one that names somebody else
        SnapshotChunk(2, 1, term_of("2.3"), 9, FIRST, THREE.membership, 4, crc32c(b"data"), 0, b"data"),
        VoteRequest(2, 1, term_of("2.3"), 5, FIRST, False, True),
        AppendEntriesResponse(2, 1, FIRST, 99),  # more than was sent
        AppendEntriesResponse(2, 1, FIRST, 1, True, 99),
        RaftHeartbeatResponse(2, 1, FIRST, 99),  # a round that has not begun
        RaftHeartbeat(2, 3, SECOND, 1, 0),  # to somebody else
        VoteRequest(2, 1, term_of("30000000.2"), 5, 1, False, True),  # no term rises so fast
        LeadNow(2, 1, FIRST),
    ],
)
def test_what_cannot_be_is_dropped_and_counted(message: Message) -> None:
    broker = leader()
    broker.step(message)
    assert broker.dropped == 1
    assert not broker.has_ready()
    assert (broker.is_leader, broker.term, broker.commit) == (True, FIRST, 1)


@pytest.mark.parametrize(
    "message",
    [
        VoteResponse(9, 1, term_of("7.9"), False, False),
        AppendEntriesResponse(9, 1, term_of("7.9"), 1, True),
        RaftHeartbeatResponse(9, 1, term_of("7.9"), 0),
        SnapshotResponse(9, 1, term_of("7.9"), 1, 0),
    ],
)
def test_an_answer_of_who_is_no_member_is_ignored(message: Message) -> None:
    broker = leader()
    broker.step(message)
    assert (broker.is_leader, broker.term, broker.dropped) == (True, FIRST, 0)


def test_a_request_of_a_later_leader_is_taken_from_whom_it_may_not_know_yet() -> None:
    broker = leader()
    broker.step(RaftHeartbeat(9, 1, term_of("7.9"), 1, 0, FIRST))
    assert (broker.leader, broker.term) == (9, term_of("7.9"))


SEVENTH = term_of("7.2")
COMMITTED = tuple(Entry(term, index, EntryKind.COMMAND, b"a") for index, term in ((1, 1), (2, 1), (3, 5), (4, 6)))


@pytest.mark.parametrize(
    ("message", "index", "term"),
    [
        (AppendEntriesRequest(2, 1, SEVENTH, 2, 4, 0), 2, 1),
        (AppendEntriesRequest(2, 1, SEVENTH, 3, 2, 3), 3, 5),
        (AppendEntriesRequest(2, 1, SEVENTH, 1, 1, 0, (Entry(SEVENTH, 2, EntryKind.LEADERSHIP, b""),)), 2, 1),
        (AppendEntriesRequest(2, 1, SEVENTH, 2, 1, 0, (Entry(4, 3, EntryKind.COMMAND, b"b"),)), 3, 5),
        (RaftHeartbeat(2, 1, SEVENTH, 3, 0, 6), 3, 5),
        (SnapshotChunk(2, 1, SEVENTH, 3, 4, THREE.membership, 4, crc32c(b"data"), 0, b"data"), 3, 5),
        (SnapshotChunk(2, 1, SEVENTH, 2, 4, THREE.membership, 4, crc32c(b"data"), 0, b"data"), 2, 1),
    ],
)
def test_a_leader_that_lacks_what_is_committed_here_ends_this_brokers_part(message, index: int, term: int) -> None:
    state = StoredState(HardState(6, None, 3), THREE, COMMITTED)
    broker = Raft(RaftConfig(1), NoChance(), state)
    done(broker)
    broker.step(message)
    found = broker.contradiction
    assert found is not None
    assert (found.index, found.term, found.leader) == (index, term, 2)
    assert (broker.commit, broker.log.last_index, broker.leader) == (3, 4, None)
    assert done(broker) == []
    broker.step(RaftHeartbeat(3, 1, term_of("8.3"), 0, 0))
    broker.campaign()
    for _ in range(30):
        broker.tick()
    assert not broker.has_ready()
    with pytest.raises(NotLeaderError):
        broker.propose(b"x")


@pytest.mark.parametrize(
    "message",
    [
        AppendEntriesRequest(2, 1, SEVENTH, 0, 0, 0, (Entry(SEVENTH, 1, EntryKind.LEADERSHIP, b""),)),
        AppendEntriesRequest(2, 1, SEVENTH, 1, 6, 0),
        RaftHeartbeat(2, 1, SEVENTH, 1, 0, 6),
        SnapshotChunk(2, 1, SEVENTH, 1, 6, THREE.membership, 4, crc32c(b"data"), 0, b"data"),
    ],
)
def test_so_does_one_with_later_terms_where_a_snapshot_has_replaced_the_entries(message: Message) -> None:
    broker = raft(1, Snapshot(2, 5, THREE.membership, b"image"), Entry(6, 3, EntryKind.COMMAND, b"a"), term=6)
    broker.step(message)
    assert broker.contradiction is not None
    assert broker.contradiction.term == 5


@pytest.mark.parametrize(
    "message",
    [
        AppendEntriesRequest(2, 1, SEVENTH, 3, 5, 3, (Entry(SEVENTH, 4, EntryKind.LEADERSHIP, b""),)),
        AppendEntriesRequest(2, 1, SEVENTH, 0, 0, 0, COMMITTED[:3]),
        RaftHeartbeat(2, 1, SEVENTH, 3, 0, 5),
        RaftHeartbeat(2, 1, SEVENTH, 4, 0, SEVENTH),
        SnapshotChunk(2, 1, SEVENTH, 3, 5, THREE.membership, 4, crc32c(b"data"), 0, b"data"),
        SnapshotChunk(2, 1, SEVENTH, 4, SEVENTH, THREE.membership, 4, crc32c(b"data"), 0, b"data"),
    ],
)
def test_what_is_not_committed_may_be_another_one(message: Message) -> None:
    broker = Raft(RaftConfig(1), NoChance(), StoredState(HardState(6, None, 3), THREE, COMMITTED))
    broker.step(message)
    assert broker.contradiction is None
    assert broker.leader == 2
    assert broker.commit == (4 if isinstance(message, SnapshotChunk) and message.index == 4 else 3)


@pytest.mark.parametrize("term", [6, SEVENTH])
def test_after_a_restart_it_is_still_known_what_contradicts(term: int) -> None:
    """The commit index is not worth a write else."""
    broker = Raft(RaftConfig(1), NoChance(), StoredState(HardState(term, None, 2), THREE, COMMITTED))
    done(broker)
    broker.step(RaftHeartbeat(2, 1, SEVENTH, 3, 0, 5))
    broker.step(RaftHeartbeat(2, 1, SEVENTH, 3, 0, 6))
    ready = broker.ready()
    assert ready.must_sync
    assert ready.hard_state == HardState(SEVENTH, None, 3)
    assert ready.messages == ()


def test_a_contradiction_says_what_is_where() -> None:
    broker = Raft(RaftConfig(1), NoChance(), StoredState(HardState(6, None, 3), THREE, COMMITTED))
    broker.step(AppendEntriesRequest(2, 1, SEVENTH, 1, 1, 0, (Entry(SEVENTH, 2, EntryKind.LEADERSHIP, b""),)))
    text = "entry 2 is committed here with term 1; broker 2 leads with one of 7 of broker 2 (0000)"
    assert str(broker.contradiction) == text


def test_a_false_snapshot_is_dropped_and_asked_for_again() -> None:
    broker = raft(2, Snapshot(0, 0, RaftMembership(()), b""))
    broker.step(SnapshotChunk(1, 2, FIRST, 5, 1, THREE.membership, 4, 12345, 0, b"data"))
    assert broker.dropped == 1
    assert broker.commit == 0
    assert broker.membership == RaftMembership(())


# A peer that says anything at all.

small = st.integers(0, 12)
peers = st.integers(1, 5)
rounds = st.integers(0, 3)
terms = st.one_of(st.integers(0, 4), st.builds(next_term, rounds, peers, st.just(0)))
members = st.sampled_from([(1, 2, 3), (1, 2), (2, 3), (1, 2, 3, 4), (4,)]).map(RaftMembership)
kinds = st.sampled_from(EntryKind)
crcs = st.sampled_from([0, crc32c(b"data"), crc32c(b"data")])


@st.composite
def entries(draw, prev_index: int, prev_term: int) -> tuple[Entry, ...]:
    """Mostly sane."""
    made = []
    term = prev_term
    for index in range(prev_index + 1, prev_index + 1 + draw(st.integers(0, 4))):
        term = max(term, draw(terms), 1)
        kind = draw(kinds)
        data = encode_membership(draw(members)) if kind is EntryKind.MEMBERSHIP else b"x"
        made.append(Entry(term, index, kind, data))
    return tuple(made)


@st.composite
def messages(draw) -> Message:
    sender, to = draw(peers), draw(st.integers(1, 4))
    own = st.builds(next_term, rounds, st.just(sender), st.just(0))
    term = draw(st.one_of(own, own, own, terms, st.integers(0, 2**62)))
    kind = draw(st.integers(0, 11))
    prev = draw(small), draw(terms)
    return [
        lambda: VoteRequest(sender, to, term, draw(small), draw(terms), draw(st.booleans()), draw(st.booleans())),
        lambda: VoteResponse(sender, to, term, draw(st.booleans()), draw(st.booleans())),
        lambda: AppendEntriesRequest(sender, to, term, *prev, draw(small), draw(entries(*prev))),
        lambda: AppendEntriesRequest(sender, to, term, *prev, draw(small), draw(entries(*prev))),
        lambda: AppendEntriesResponse(
            sender, to, term, draw(small), draw(st.booleans()), draw(small), draw(st.booleans())
        ),
        lambda: RaftHeartbeat(sender, to, term, draw(small), draw(small)),
        lambda: RaftHeartbeatResponse(sender, to, term, draw(small)),
        lambda: SnapshotChunk(sender, to, term, draw(small), draw(terms), draw(members), 4, draw(crcs), 0, b"data"),
        lambda: SnapshotResponse(sender, to, term, draw(small), draw(small)),
        lambda: ReadRequest(sender, to, term, b"r"),
        lambda: ReadResponse(sender, to, term, draw(small), b"r"),
        lambda: LeadNow(sender, to, term),
    ][kind]()


def give(broker: Raft, action) -> None:
    if action == "tick":
        broker.tick()
    elif action == "ready":
        done(broker)
    elif action == "retract":
        if broker.has_ready():
            broker.retract(broker.ready())
    elif action == "compact":
        if broker.applied > broker.snapshot.index:
            broker.compact(broker.applied, b"image")
    elif isinstance(action, str):
        with contextlib.suppress(RemoteError):
            getattr(broker, action)(*([b"x"] if action != "transfer" else [2]))
    else:
        broker.step(action)


ACTIONS = ["tick", "ready", "ready", "retract", "compact", "propose", "read_index", "transfer"]


@given(
    st.sampled_from(["leader", "follower", "joining"]),
    st.lists(st.one_of(messages(), messages(), st.sampled_from(ACTIONS)), max_size=40),
)
@settings(max_examples=examples(400), deadline=None)
def test_no_message_crashes_the_core(kind: str, actions: list) -> None:
    broker = {
        "leader": leader,
        "follower": lambda: raft(1, THREE, *(Entry(at, at, EntryKind.COMMAND, b"a") for at in (1, 2)), term=2),
        "joining": lambda: raft(1, Snapshot(0, 0, RaftMembership(()), b"")),
    }[kind]()
    commit = broker.commit
    term = broker.term
    for action in actions:
        give(broker, action)
        log = broker.log
        assert term <= broker.term
        assert commit <= broker.commit <= log.last_index
        assert log.base_index <= log.snapshot.index <= log.commit
        assert log.applied <= log.commit
        commit, term = broker.commit, broker.term
    done(broker)


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 255))
def test_bytes_that_are_nearly_a_message(tail: bytes, place: int, value: int) -> None:
    broker = leader()
    for message in MESSAGES:
        data = bytearray(encode_message(message))
        data[place % len(data)] = value
        for changed in (bytes(data), bytes(data) + tail):
            with contextlib.suppress(RemoteError):
                broker.step(decode_message(changed))
    done(broker)
