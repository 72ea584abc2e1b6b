"""Interest against a plain model: each message has a set of consumers that need it, and goes when that is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.config import RetentionPolicy
from penstock.base.subjects import matches, overlap
from penstock.consumers.interest import ALL, Interest
from penstock.live.row_set import RowSet
from tests.extent import examples

SUBJECTS = ("a", "b", "c.x", "c.y")
FILTERS = ((), (), ("a",), ("b", "c.*"), ("c.>", "a"))


@dataclass
class Consumer:
    """A consumer as a list of offsets: it is its own claim."""

    filters: tuple[str, ...]
    next_offset: int
    hand: list[int] = field(default_factory=list)

    def wants(self, subject: str) -> bool:
        return not self.filters or any(matches(one, subject) for one in self.filters)

    def holds(self, offset: int) -> bool:
        return offset in self.hand

    def held(self, begin: int, end: int) -> Sequence[int]:
        return [one for one in sorted(self.hand) if begin <= one < end]


class InterestMachine(RuleBasedStateMachine):
    """The driver, the log, and who is owed what."""

    policy = RetentionPolicy.INTEREST

    def __init__(self) -> None:
        super().__init__()
        self.subjects: list[str] = []
        self.hidden: set[int] = set()
        self.wanted: dict[str, set[int]] = {}  # by name: the rows that it was promised and has not settled
        self.consumers: dict[str, Consumer] = {}
        self.names = 0
        self.start = 0
        self.interest = Interest(self.policy, 0)

    @initialize()
    def begin(self) -> None:
        self.interest.look()

    # The log

    @rule(subject=st.sampled_from(SUBJECTS), count=st.integers(1, 4))
    def publish(self, subject: str, count: int) -> None:
        for _ in range(count):
            offset = len(self.subjects)
            self.subjects.append(subject)
            takers = [name for name, one in self.consumers.items() if one.wants(subject)]
            for name in takers:
                self.wanted[name].add(offset)
            if self.policy is RetentionPolicy.INTEREST and not any(
                filter_ == ALL or matches(filter_, subject) for filter_ in self.interest.filters
            ):
                assert not takers
                self.hidden.add(offset)  # the decision on committed rows

    @precondition(lambda self: self.start in self.hidden)
    @rule()
    def raise_start(self) -> None:
        while self.start in self.hidden:
            self.start += 1
        self.interest.start_raised(self.start)

    @rule()
    def fail_over(self) -> None:
        """A new leader has the consumers, and the marks that were answered."""
        self.interest = Interest(self.policy, self.start)
        for name, one in self.consumers.items():
            self.interest.join(name, one.filters, one)

    # Consumers

    def may_join(self, filters: tuple[str, ...]) -> bool:
        return True

    @rule(filters=st.sampled_from(FILTERS), is_new=st.booleans())
    def join(self, filters: tuple[str, ...], is_new: bool) -> None:
        if len(self.consumers) == 4 or not self.may_join(filters):
            return
        self.hide()  # who creates one waits for what is being hidden
        self.names += 1
        name, begin = f"n{self.names}", len(self.subjects) if is_new and self.may_be_new else self.start
        one = self.consumers[name] = Consumer(filters, begin)
        self.wanted[name] = {
            offset
            for offset in range(begin, len(self.subjects))
            if offset not in self.hidden and one.wants(self.subjects[offset])
        }
        self.interest.join(name, filters, one)

    may_be_new = True

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        self.before_one_leaves()
        name = list(self.consumers)[number % len(self.consumers)]
        del self.consumers[name], self.wanted[name]
        self.interest.leave(name)

    def before_one_leaves(self) -> None:
        """Nothing is to be done: who is left decides."""

    @precondition(lambda self: self.consumers)
    @rule(number=st.integers(0, 3), rows=st.integers(1, 8))
    def deliver(self, number: int, rows: int) -> None:
        """The cursor goes on: over what is hidden and what it does not want."""
        one = list(self.consumers.values())[number % len(self.consumers)]
        while rows and one.next_offset < len(self.subjects):
            offset = one.next_offset
            if offset not in self.hidden and one.wants(self.subjects[offset]):
                one.hand.append(offset)
                rows -= 1
            one.next_offset += 1

    @precondition(lambda self: any(one.hand for one in self.consumers.values()))
    @rule(number=st.integers(0, 3), choice=st.integers(1, 15), is_told_twice=st.booleans())
    def settle(self, number: int, choice: int, is_told_twice: bool) -> None:
        holders = [name for name, one in self.consumers.items() if one.hand]
        name = holders[number % len(holders)]
        one = self.consumers[name]
        offsets = [offset for offset in one.hand if choice >> offset % 4 & 1]
        for offset in offsets:
            one.hand.remove(offset)
            self.wanted[name].discard(offset)
        self.interest.settled(name, sorted(offsets))
        if is_told_twice:
            self.interest.settled(name, sorted(offsets))

    # The driver

    @rule(fails=st.booleans())
    def hide(self, fails: bool = False) -> None:
        found = self.interest.take(len(self.subjects))
        rows = {offset for run in found.runs() for offset in range(*run)}
        assert rows <= set(range(len(self.subjects)))
        self.check_unneeded(rows)
        if fails:
            self.interest.give_back(found)
        else:
            self.hidden |= rows

    @rule()
    def ask(self) -> None:
        for one in self.interest.asks(len(self.subjects)):
            gone = [
                offset
                for run in one.rows.runs()
                for offset in range(*run)
                if any(matches(filter_, self.subjects[offset]) for filter_ in one.filters) == one.if_matching
            ]
            self.interest.answered(one, RowSet.of(gone))

    @rule()
    def look(self) -> None:
        self.interest.look()

    def check_unneeded(self, rows: set[int]) -> None:
        for name, owed in self.wanted.items():
            assert not owed & rows, f"{name} has not settled {sorted(owed & rows)}"

    @invariant()
    def nothing_hidden_is_owed(self) -> None:
        self.check_unneeded(self.hidden)

    def is_needed(self, offset: int) -> bool:
        return any(offset in owed for owed in self.wanted.values())

    def teardown(self) -> None:
        """Once all is taken and asked, what is left is what somebody needs: no rubbish."""
        for _ in range(3):
            self.hide()
            self.ask()
        self.hide()
        if not self.consumers:
            return
        left = {offset for offset in range(self.start, len(self.subjects)) if offset not in self.hidden}
        rubbish = {offset for offset in left if not self.is_needed(offset)}
        assert rubbish <= self.may_stay(), f"nobody needs {sorted(rubbish - self.may_stay())}"

    def may_stay(self) -> set[int]:
        """Rows that nobody has passed: a consumer with filters may yet learn that it does not want them."""
        nexts = sorted(one.next_offset for one in self.consumers.values())
        wants_all = [one.next_offset for one in self.consumers.values() if not one.filters]
        return set(range(min([nexts[-1], *wants_all]), len(self.subjects)))


class QueueMachine(InterestMachine):
    """A queue: consumers do not overlap, and what none matches stays."""

    policy = RetentionPolicy.WORKQUEUE
    may_be_new = False

    def __init__(self) -> None:
        super().__init__()
        self.settled: set[int] = set()

    def may_join(self, filters: tuple[str, ...]) -> bool:
        rest = [one.filters for one in self.consumers.values()]
        if not filters or not all(rest):
            return not rest
        return not any(overlap(one, other) for one in filters for found in rest for other in found)

    def before_one_leaves(self) -> None:
        """What it has settled is hidden before its rows are deleted; the rest is for the next one."""
        self.interest.look()
        self.hide()
        self.ask()
        self.hide()

    def check_unneeded(self, rows: set[int]) -> None:
        super().check_unneeded(rows)
        passed = {
            offset
            for offset in rows
            if any(one.wants(self.subjects[offset]) and offset < one.next_offset for one in self.consumers.values())
        }
        self.settled |= passed
        assert rows <= self.settled | self.hidden, f"no consumer had {sorted(rows - self.settled - self.hidden)}"

    def may_stay(self) -> set[int]:
        """What no consumer has passed."""
        return {
            offset
            for offset, subject in enumerate(self.subjects)
            if not any(one.wants(subject) and offset < one.next_offset for one in self.consumers.values())
        }


TestInterest = InterestMachine.TestCase
TestQueue = QueueMachine.TestCase
TestInterest.settings = settings(max_examples=examples(500), stateful_step_count=50, deadline=None)
TestQueue.settings = settings(max_examples=examples(200), stateful_step_count=50, deadline=None)
