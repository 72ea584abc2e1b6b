"""The redelivery core: one message of a partition at a time, back-off, dead letters, and commits of what is settled."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.frugal.scopes.redelivery import (
    COMMIT_INTERVAL_S,
    COMMIT_MESSAGES_MAX,
    COMMIT_RETRY_S,
    LETTERS_BYTES_MAX,
    LETTERS_MAX,
    PENDING_BYTES_MAX,
    PENDING_MESSAGES_MAX,
    Attempt,
    DeadLetter,
    Lease,
    LetterBatch,
    Mark,
    Redelivery,
    RetryPolicy,
    Row,
    Step,
)
from tests.extent import examples

POLICY = RetryPolicy(attempts_max=3, wait_s=1.0, factor=2.0, wait_s_max=3.0, total_s_max=100.0, jitter=0.0)


def row(offset: int, *, wanted: bool = True, size: int = 10) -> Row[int]:
    return Row(Mark(offset + 1, 1), offset, size, wanted)


def core(handlers: int = 4, policy: RetryPolicy = POLICY) -> Redelivery[int]:
    return Redelivery(policy, handlers_max=handlers, random=lambda: 1.0)


def given_out(step: Step[int]) -> list[tuple[int, int, int]]:
    return [(one.lease.partition, one.item, one.deliveries) for one in step.deliver]


def test_messages_of_a_partition_come_one_at_a_time_and_partitions_beside_each_other() -> None:
    made = core()
    one, other = made.assign(0, Mark(5, 1)), made.assign(1, Mark(0, 1))
    made.fetched(one, [row(5), row(6)])
    made.fetched(other, [row(0)])
    step = made.step(0.0)
    assert given_out(step) == [(0, 5, 1), (1, 0, 1)]
    assert given_out(made.step(0.0)) == []
    made.handled(step.deliver[0], 0.0)
    assert given_out(made.step(0.0)) == [(0, 6, 1)]
    assert made.positions == {0: 6, 1: 0}


def test_no_more_handlers_run_than_are_free_and_partitions_take_turns() -> None:
    made = core(handlers=1)
    leases = [made.assign(number, Mark(0, 1)) for number in range(3)]
    for lease in leases:
        made.fetched(lease, [row(0), row(1)])
    order = []
    while (step := made.step(0.0)).deliver:
        (attempt,) = step.deliver
        order.append((attempt.lease.partition, attempt.item))
        made.handled(attempt, 0.0)
    assert order == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_a_failed_message_waits_longer_each_time_while_other_partitions_go_on_and_then_is_a_dead_letter() -> None:
    made = core()
    one, other = made.assign(0, Mark(0, 1)), made.assign(1, Mark(0, 1))
    made.fetched(one, [row(0), row(1)])
    made.fetched(other, [row(0), row(1)])
    bad, good = made.step(0.0).deliver
    made.failed(bad, "first", 0.0)
    made.handled(good, 0.0)
    step = made.step(0.0)
    assert given_out(step) == [(1, 1, 1)]  # offset 1 of partition 0 waits behind offset 0
    assert step.wake_s == 1.0
    assert given_out(made.step(0.99)) == []
    (bad,) = made.step(1.0).deliver
    assert (bad.item, bad.deliveries) == (0, 2)
    made.failed(bad, "second", 1.0)
    assert given_out(made.step(2.9)) == []
    (bad,) = made.step(3.0).deliver
    made.failed(bad, "third", 3.5)
    step = made.step(3.5)
    assert step.write == (LetterBatch(one, (DeadLetter(0, "third", 3),), 0),)
    assert given_out(step) == [(0, 1, 1)]
    assert made.positions[0] == 0
    made.written(step.write[0], 3.6)
    assert made.positions[0] == 1


def poisoned(made: Redelivery[int], lease: Lease, offsets: range) -> list[LetterBatch[int]]:
    """Fetch messages that no handler can take; return the batches of dead letters that are at work then."""
    made.fetched(lease, [row(offset) for offset in offsets])
    begun: list[LetterBatch[int]] = []
    step = made.step(0.0)
    while step.deliver:
        begun += step.write
        (attempt,) = step.deliver
        made.failed(attempt, f"no {attempt.item}", 0.0, is_final=True)
        step = made.step(0.0)
    return begun + list(step.write)


def test_dead_letters_are_written_in_batches_while_those_behind_them_are_handled() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    (first,) = poisoned(made, lease, range(5))
    assert [one.item for one in first.letters] == [0]
    made.written(first, 1.0)
    (second,) = made.step(1.0).write
    assert second.letters == tuple(DeadLetter(offset, f"no {offset}", 1) for offset in range(1, 5))
    assert made.positions == {0: 1}
    made.fetched(lease, [row(5)])
    (attempt,) = made.step(1.0).deliver
    made.handled(attempt, 1.0)
    assert made.step(10.0).commit == {0: Mark(1, 1)}  # nothing at or behind what is not acked
    made.committed({0: Mark(1, 1)})
    assert made.step(20.0).commit is None
    made.written(second, 20.0)
    assert made.step(20.0 + COMMIT_INTERVAL_S).commit == {0: Mark(6, 1)}


def test_no_more_is_begun_while_the_most_dead_letters_are_not_acked() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    (first,) = poisoned(made, lease, range(LETTERS_MAX + 2))
    assert made.step(0.0).deliver == ()
    made.written(first, 0.0)
    step = made.step(0.0)
    assert (len(step.write[0].letters), given_out(step)) == (LETTERS_MAX - 1, [(0, LETTERS_MAX, 1)])
    large = core()
    lease = large.assign(0, Mark(0, 1))
    large.fetched(lease, [row(0, size=LETTERS_BYTES_MAX), row(1)])
    (attempt,) = large.step(0.0).deliver
    large.failed(attempt, "no", 0.0, is_final=True)
    step = large.step(0.0)
    assert (len(step.write), step.deliver) == (1, ())


def test_dead_letters_that_are_not_taken_are_tried_one_by_one_and_hold_their_partition_up() -> None:
    """One that the stream never takes does not keep those before it from being settled."""
    made = core()
    lease = made.assign(0, Mark(0, 1))
    (first,) = poisoned(made, lease, range(3))
    made.written(first, 0.0)
    (both,) = made.step(0.0).write
    made.not_written(both, 0.0)
    made.fetched(lease, [row(3)])
    assert made.step(0.5) == Step(wake_s=1.0)
    (alone,) = made.step(1.0).write
    assert ([one.item for one in alone.letters], alone.failures) == ([1], 1)
    made.written(alone, 1.0)
    assert made.positions == {0: 2}
    (last,) = made.step(1.0).write
    assert ([one.item for one in last.letters], last.failures) == ([2], 0)
    made.written(last, 1.0)
    assert made.positions == {0: 3}


def test_what_runs_behind_dead_letters_that_are_given_up_is_not_settled() -> None:
    """The partition is given back, and they were not written: its next reader begins at the first of them."""
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0), row(1)])
    (attempt,) = made.step(0.0).deliver
    made.failed(attempt, "no", 0.0, is_final=True)
    step = made.step(0.0)
    (batch,), (running,) = step.write, step.deliver
    made.revoke(0)
    made.not_written(batch, 0.0)
    assert made.step(0.0).release == ()
    made.handled(running, 0.0)
    step = made.step(0.0)
    assert (step.commit, step.release) == (None, (lease,))


def test_a_message_that_cannot_be_decoded_is_a_dead_letter_at_once() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0)])
    (attempt,) = made.step(0.0).deliver
    made.failed(attempt, "no frame", 0.0, is_final=True)
    (batch,) = made.step(0.0).write
    assert batch.letters == (DeadLetter(0, "no frame", 1),)


def test_the_time_of_all_attempts_is_limited_too() -> None:
    made = core(policy=RetryPolicy(attempts_max=100, wait_s=4.0, total_s_max=10.0, jitter=0.0))
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0)])
    (attempt,) = made.step(0.0).deliver
    made.failed(attempt, "no", 5.0)
    (attempt,) = made.step(9.0).deliver
    made.failed(attempt, "no", 9.5)  # the next one would begin after 17.5 s
    assert [one.deliveries for batch in made.step(9.5).write for one in batch.letters] == [2]


def test_nothing_is_committed_while_a_dead_letter_cannot_be_written() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0), row(1)])
    (attempt,) = made.step(0.0).deliver
    made.failed(attempt, "no", 0.0, is_final=True)
    for failures in range(5):
        step = made.step(100.0 * failures)
        (batch,) = step.write
        assert batch.failures == failures
        if step.deliver:
            assert failures == 0  # it was begun before
            made.handled(step.deliver[0], 0.0)
        made.not_written(batch, 100.0 * failures)
        step = made.step(100.0 * failures)
        assert (step.write, step.commit, step.deliver) == ((), None, ())
    (batch,) = made.step(1000.0).write
    made.written(batch, 1000.0)
    assert made.step(1000.0 + COMMIT_INTERVAL_S).commit == {0: Mark(2, 1)}


def test_commits_wait_for_their_interval_or_for_enough_messages() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(number) for number in range(3)])
    (attempt,) = made.step(0.0).deliver
    made.handled(attempt, 7.0)
    step = made.step(7.0)
    assert step.commit is None
    assert step.wake_s == 7.0 + COMMIT_INTERVAL_S
    step = made.step(step.wake_s)
    assert step.commit == {0: Mark(1, 1)}
    assert made.step(99.0).commit is None  # one at a time
    made.committed({0: Mark(1, 1)})
    assert made.step(99.0).commit is None
    assert made.step(99.0).wake_s == math.inf


def test_enough_messages_are_committed_at_once() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(offset, wanted=False) for offset in range(COMMIT_MESSAGES_MAX)])
    assert made.step(0.0).commit == {0: Mark(COMMIT_MESSAGES_MAX, 1)}


def test_a_commit_that_failed_is_tried_again_later_and_has_all_that_was_settled_since() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1), is_committed=False)
    step = made.step(0.0)
    assert step.commit == {0: Mark(0, 1)}  # a new group notes at once where it began
    made.not_committed(0.0)
    made.fetched(lease, [row(0, wanted=False)])
    step = made.step(0.1)
    assert (step.commit, step.wake_s) == (None, COMMIT_RETRY_S)
    assert made.step(COMMIT_RETRY_S).commit == {0: Mark(1, 1)}
    made.committed({0: Mark(1, 1)})
    assert made.step(99.0) == Step()


def test_a_partition_is_given_back_after_its_handler_and_its_commit() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0), row(1)])
    (attempt,) = made.step(0.0).deliver
    made.revoke(0)
    assert made.step(0.0).release == ()
    assert not made.has_room(lease)
    made.handled(attempt, 0.0)
    step = made.step(0.0)
    assert (step.commit, step.release, step.deliver) == ({0: Mark(1, 1)}, (), ())
    made.not_committed(0.0)
    step = made.step(0.0)
    assert (step.commit, step.release, step.wake_s) == (None, (), COMMIT_RETRY_S)  # not again and again
    assert made.step(COMMIT_RETRY_S).commit == {0: Mark(1, 1)}
    made.committed({0: Mark(1, 1)})
    assert made.step(1.0).release == (lease,)
    assert made.is_idle


@pytest.mark.parametrize("is_writing", [False, True])
def test_a_message_that_waits_is_left_to_the_next_reader_of_its_partition(*, is_writing: bool) -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0)])
    (attempt,) = made.step(0.0).deliver
    made.failed(attempt, "no", 0.0, is_final=is_writing)
    letters = made.step(0.0).write
    made.revoke(0)
    if is_writing:
        assert made.step(0.0).release == ()  # it may be written: then it is settled
        made.not_written(letters[0], 0.0)
    assert made.step(0.0).release == (lease,)
    assert made.positions == {}


@pytest.mark.parametrize("is_writing", [False, True])
def test_a_partition_that_is_given_back_begins_nothing_while_its_commit_takes_long(*, is_writing: bool) -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0), row(1)])
    (attempt,) = made.step(0.0).deliver
    made.handled(attempt, 0.0)
    (attempt,) = made.step(0.0).deliver
    if is_writing:
        made.failed(attempt, "no", 0.0, is_final=True)
        (letter,) = made.step(0.0).write
        made.revoke(0)
        made.not_written(letter, 0.0)
    else:
        made.revoke(0)
        made.failed(attempt, "no", 0.0, is_final=True)
    step = made.step(0.0)
    assert (step.write, step.commit, step.release) == ((), {0: Mark(1, 1)}, ())
    made.not_committed(0.0)
    step = made.step(100.0)
    assert (step.write, step.deliver, step.release) == ((), (), ())
    assert step.commit == {0: Mark(1, 1)}
    made.committed({0: Mark(1, 1)})
    assert made.step(100.0).release == (lease,)


def test_a_lost_partition_is_not_handled_twice_at_once_by_one_process() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    made.fetched(lease, [row(0)])
    (attempt,) = made.step(0.0).deliver
    made.lose()
    again = made.assign(0, Mark(0, 1))
    made.fetched(again, [row(0)])
    assert made.step(0.0).deliver == ()  # its handler still runs
    made.handled(attempt, 0.0)
    assert made.positions == {0: 0}  # which changes nothing here
    assert given_out(made.step(0.0)) == [(0, 0, 1)]
    made.fetched(lease, [row(1)])
    late = LetterBatch(lease, (DeadLetter(0, "", 1),), 0)
    made.written(late, 0.0)
    made.not_written(late, 0.0)
    assert not made.has_room(lease)
    assert made.positions == {0: 0}


def test_what_waits_for_a_handler_is_bounded_in_number_and_bytes() -> None:
    made = core()
    lease = made.assign(0, Mark(0, 1))
    half = PENDING_MESSAGES_MAX // 2
    made.fetched(lease, [row(number) for number in range(half - 1)])
    assert made.has_room(lease, share=0.5)
    made.fetched(lease, [row(number) for number in range(half - 1, PENDING_MESSAGES_MAX - 1)])
    assert made.has_room(lease)
    assert not made.has_room(lease, share=0.5)
    made.fetched(lease, [row(PENDING_MESSAGES_MAX - 1)])
    assert not made.has_room(lease)
    large = made.assign(1, Mark(0, 1))
    assert made.has_room(large)
    made.fetched(large, [row(0, size=2 * PENDING_BYTES_MAX)])
    assert not made.has_room(large)
    (attempt,) = (one for one in made.step(0.0).deliver if one.lease == large)
    made.handled(attempt, 0.0)
    assert made.has_room(large, share=0.5)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"attempts_max": 0}, "attempts_max is 0"),
        ({"attempts_max": 1.5}, "attempts_max is 1.5"),
        ({"wait_s": -1.0}, "wait_s is -1.0"),
        ({"wait_s": math.inf}, "wait_s is inf"),
        ({"factor": 0.5}, "factor is 0.5"),
        ({"total_s_max": math.nan}, "total_s_max is nan"),
        ({"jitter": 1.1}, "jitter is 1.1"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


@given(
    st.integers(1, 5_000),
    st.floats(0, 100),
    st.floats(1, 1e6),
    st.floats(0, 100),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_pause_grows_to_its_most_and_never_overflows(
    attempts: int, wait_s: float, factor: float, most_s: float, jitter: float, drawn: float
) -> None:
    policy = RetryPolicy(wait_s=wait_s, factor=factor, wait_s_max=most_s, jitter=jitter)
    pause_s = policy.pause_s(attempts, lambda: drawn)
    assert 0 <= pause_s <= most_s
    assert pause_s >= min(wait_s, most_s) * (1 - jitter) * (1 - 1e-9)


class Fate:
    """What becomes of a message: fails so many times, or for good, or nobody wants it."""

    def __init__(self, failures: int, *, is_broken: bool, wanted: bool) -> None:
        self.failures, self.is_broken, self.wanted = failures, is_broken, wanted


FATES = st.builds(
    Fate, st.sampled_from([0, 0, 1, 4]), is_broken=st.booleans(), wanted=st.sampled_from([True, True, False])
)


class Members(RuleBasedStateMachine):
    """One member and the list that its partitions are: whatever happens, nothing is committed that was not settled."""

    attempts: Bundle[tuple[Attempt[int], float]] = Bundle("attempts")
    letters: Bundle[LetterBatch[int]] = Bundle("letters")

    @initialize(logs=st.lists(st.lists(FATES, max_size=9), min_size=1, max_size=3), handlers=st.integers(1, 3))
    def begin(self, logs: list[list[Fate]], handlers: int) -> None:
        self.logs = logs
        self.core = Redelivery[int](POLICY, handlers_max=handlers, random=lambda: 0.0)
        self.handlers = handlers
        self.now_s = 0.0
        self.group = dict.fromkeys(range(len(logs)), 0)  # committed offsets, as the broker has them
        self.settled: list[set[int]] = [set() for _ in logs]  # handled, a dead letter, or unwanted
        self.seen: dict[tuple[int, int], int] = {}
        self.leases: dict[int, Lease] = {}
        self.read: dict[int, int] = {}
        self.running: list[Attempt[int]] = []
        self.writing: list[LetterBatch[int]] = []
        self.next: dict[int, set[int]] = {}  # offsets that a handler may get next, by partition
        self.commits: list[dict[int, Mark]] = []
        self.retry_s: dict[tuple[Lease, int], float] = {}
        self.revoked: set[int] = set()
        for number in range(len(logs)):
            self.assign(number)
            self.fetch(number, 4)

    def step(self) -> None:
        step = self.core.step(self.now_s)
        assert step.wake_s > self.now_s  # it never asks for a step at once: that would be a loop
        for batch in step.write:
            assert batch.lease not in {one.lease for one in self.writing}, "one at a time"
            assert [one.item for one in batch.letters] == sorted({one.item for one in batch.letters})
            self.writing.append(batch)
        if step.commit is not None:
            assert not self.commits
            for number, mark in step.commit.items():
                unsettled = set(range(self.group[number], mark.offset)) - self.settled[number]
                wanted = {one for one in unsettled if self.logs[number][one].wanted}
                assert not wanted, "committed, and never settled"
            self.commits.append(dict(step.commit))
        for lease in step.release:
            assert self.leases.pop(lease.partition) == lease
            self.revoked.discard(lease.partition)
        for attempt in step.deliver:
            number = attempt.lease.partition
            assert self.leases[number] == attempt.lease
            assert number not in {one.lease.partition for one in self.running}
            assert number not in self.revoked
            assert attempt.item in self.next[number], "out of order"
            self.next[number] = {attempt.item, self.wanted_from(number, attempt.item + 1)}
            assert self.now_s >= self.retry_s.pop((attempt.lease, attempt.item), 0.0), "too early"
            assert 1 <= attempt.deliveries <= POLICY.attempts_max
            self.running.append(attempt)
        assert len(self.running) <= self.handlers

    @rule(number=st.integers(0, 2))
    def assign(self, number: int) -> None:
        if number < len(self.logs) and number not in self.leases:
            start = self.group[number]
            self.leases[number] = self.core.assign(number, Mark(start, 1))
            self.read[number] = start
            self.next[number] = {self.wanted_from(number, start)}
            self.step()

    def wanted_from(self, number: int, offset: int) -> int:
        """The first offset from this one on that a handler wants."""
        log = self.logs[number]
        return next((one for one in range(offset, len(log)) if log[one].wanted), len(log))

    @rule(number=st.integers(0, 2), count=st.integers(1, 4))
    def fetch(self, number: int, count: int) -> None:
        lease = self.leases.get(number)
        if lease is None or not self.core.has_room(lease):
            return
        begin = self.read[number]
        rows = [
            row(begin + one, wanted=fate.wanted) for one, fate in enumerate(self.logs[number][begin : begin + count])
        ]
        self.core.fetched(lease, rows)
        self.read[number] += len(rows)
        self.step()

    @precondition(lambda self: self.running)
    @rule(which=st.integers(0, 9))
    def end_of_handler(self, which: int) -> None:
        attempt = self.running.pop(which % len(self.running))
        number, offset = attempt.lease.partition, attempt.item
        fate = self.logs[number][offset]
        is_over = fate.is_broken or attempt.deliveries > fate.failures
        if is_over and self.leases.get(number) == attempt.lease:
            self.next[number] = {self.wanted_from(number, offset + 1)}
        self.seen[number, offset] = self.seen.get((number, offset), 0) + 1
        if fate.is_broken:
            self.core.failed(attempt, "broken", self.now_s, is_final=True)
        elif attempt.deliveries <= fate.failures:
            self.core.failed(attempt, "not yet", self.now_s)
            if attempt.deliveries < POLICY.attempts_max and self.leases.get(number) == attempt.lease:
                self.retry_s[attempt.lease, offset] = self.now_s + min(3.0, 2.0 ** (attempt.deliveries - 1))
        else:
            self.settled[number].add(offset)
            self.core.handled(attempt, self.now_s)
        self.step()

    @precondition(lambda self: self.writing)
    @rule(which=st.integers(0, 9), is_written=st.booleans())
    def end_of_write(self, which: int, *, is_written: bool) -> None:
        batch = self.writing.pop(which % len(self.writing))
        if is_written:
            self.settled[batch.lease.partition].update(one.item for one in batch.letters)
            self.core.written(batch, self.now_s)
        else:
            self.core.not_written(batch, self.now_s)
        self.step()

    @precondition(lambda self: self.commits)
    @rule(outcome=st.sampled_from(["done", "failed", "done, and the answer was lost"]))
    def end_of_commit(self, outcome: str) -> None:
        marks = self.commits.pop()
        if outcome != "failed":
            for number, mark in marks.items():
                if number in self.leases:  # else the broker refuses it: another member has the partition
                    self.group[number] = max(self.group[number], mark.offset)
        if outcome == "done":
            self.core.committed(marks)
        else:
            self.core.not_committed(self.now_s)
        self.step()

    @rule(number=st.integers(0, 5))
    def revoke(self, number: int) -> None:
        if number in self.leases:  # seldom
            self.revoked.add(number)
            self.core.revoke(number)
            self.step()

    @rule(chance=st.integers(0, 7))
    def lose(self, chance: int) -> None:
        if chance:  # seldom: everything begins anew
            return
        self.leases.clear()
        self.revoked.clear()
        self.retry_s.clear()
        self.core.lose()
        self.step()

    @rule(seconds=st.sampled_from([0.25, 1.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.step()

    @invariant()
    def nothing_is_committed_unsettled(self) -> None:
        for number, log in enumerate(getattr(self, "logs", [])):
            for offset in range(self.group[number]):
                assert offset in self.settled[number] or not log[offset].wanted

    def teardown(self) -> None:
        """All goes well from now on: then everything is settled and committed, and nothing waits for ever."""
        if not hasattr(self, "logs"):
            return
        for _ in range(400):
            for number in range(len(self.logs)):
                self.assign(number)
                self.fetch(number, 4)
            if self.running:
                self.end_of_handler(0)
            elif self.writing:
                self.end_of_write(0, is_written=True)
            elif self.commits:
                self.end_of_commit("done")
            else:
                self.pass_time(10.0)
        assert self.group == {number: len(log) for number, log in enumerate(self.logs)}
        for number, log in enumerate(self.logs):
            assert all(offset in self.settled[number] for offset, fate in enumerate(log) if fate.wanted)


Members.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
TestMembers = Members.TestCase
