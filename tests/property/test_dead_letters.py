"""The steps of a dead letter with a crash between each two: given up, sent, stored, answered, settled, committed.

The leader of the other stream is a model here: it stores a letter unless it has one of that id, however late it comes.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock.consumers.config import AckConfig
from penstock.consumers.fold import stored_consumers
from penstock.consumers.letters import MAX_DELIVER, RETRY_US_MAX, TERMINATED, Given, LetterQueue, letter_id
from penstock.consumers.state import ConsumerState, Row
from penstock.hot import pending

ID = b"consumer"
WAIT_US = 10_000_000


class DeadLetters(RuleBasedStateMachine):
    """See the module. Each message is delivered once at most: what is not acked is given up."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = 5_000_000
        self.end = 0
        config = AckConfig(ack_wait_us=WAIT_US, max_deliver=1, tells_terminated=True)
        self.state = ConsumerState.new(ID, config, b"{}", 0, self.now_us)
        self.rows: dict[bytes, bytes] = {}  # committed
        self.writing: list[list[Row]] = []  # batches on the way
        self.letters = LetterQueue()
        self.leader = 1
        self.flight: list[tuple[int, Given]] = []  # requests, with the leader that sent each
        self.stored: dict[str, int] = {}  # in the other stream: how often
        self.acked: set[int] = set()
        self.write()
        self.commit(1)

    def write(self) -> None:
        self.writing.append(self.state.first_rows() if not self.rows else self.state.take_rows(self.now_us))

    def commit(self, count: int) -> None:
        for batch in self.writing[:count]:
            for key, value in batch:
                if value is None:
                    self.rows.pop(key, None)
                else:
                    self.rows[key] = value
        del self.writing[:count]

    # The consumer.

    @rule()
    def deliver(self) -> None:
        self.state.table.deliver(self.end, 0, self.now_us)
        self.end += 1
        self.state.table.pass_to(self.end)
        self.write()
        self.commit(len(self.writing))  # a delivery is committed before it is sent

    @rule(ms=st.sampled_from([1, 3_000, 10_001]))
    def wait(self, ms: int) -> None:
        self.now_us += 1_000 * ms
        for offset in self.state.expire(self.now_us):
            self.letters.add(Given(offset, 1, MAX_DELIVER))

    def ended_by_client(self, offset: int, kind: int) -> bool:
        entry = self.state.table.entry(offset)
        if entry is None:
            return False
        sequence = entry[0] if kind < 0 else self.sequence_of(offset)
        token = self.state.table.token(offset + 1, sequence)
        return self.state.table.check(kind, offset, sequence, token) == pending.APPLIED

    def sequence_of(self, offset: int) -> int:
        return offset + 1  # each message is delivered once

    @rule(offset=st.integers(0, 20))
    def terminate(self, offset: int) -> None:
        if self.ended_by_client(offset, pending.TERM) and not self.state.table.has_ended(offset):
            assert self.state.table.end(offset)
            self.letters.add(Given(offset, 1, TERMINATED))

    @rule(offset=st.integers(0, 20))
    def ack(self, offset: int) -> None:
        if self.ended_by_client(offset, pending.ACK):
            sequence = self.sequence_of(offset)
            token = self.state.table.token(offset + 1, sequence)
            assert self.state.table.settle(pending.ACK, offset, sequence, token, 0, self.now_us) == pending.APPLIED
            self.acked.add(offset)

    # The letters.

    @rule()
    def send(self) -> None:
        given = self.letters.next(self.now_us)
        if given is None:
            return
        if self.state.table.has_ended(given.offset):
            self.flight.append((self.leader, given))
        else:
            self.letters.done()

    @precondition(lambda self: self.flight)
    @rule(number=st.integers(0, 20), how=st.sampled_from(["stored", "answer lost", "lost", "refused", "alone"]))
    def arrive(self, number: int, how: str) -> None:
        """A request comes to the other leader, perhaps one of a leader that is gone; or it does not."""
        leader, given = self.flight.pop(number % len(self.flight))
        letter = letter_id(ID, given.offset)
        if how in ("stored", "answer lost") and letter not in self.stored:
            self.stored[letter] = 1
        if leader != self.leader:
            return
        if how == "stored":
            self.state.give_up(given.offset)
            self.letters.done()
        else:
            self.letters.failed(how, self.now_us, is_alone=how == "alone")

    # The rows.

    @rule()
    def take_rows(self) -> None:
        self.write()

    @rule(count=st.integers(1, 3))
    def committed(self, count: int) -> None:
        self.commit(count)

    @rule(count=st.integers(0, 3))
    def crash(self, count: int) -> None:
        """Another leader goes on with what was committed."""
        self.commit(count)
        self.writing.clear()
        self.leader += 1
        self.letters = LetterQueue()
        self.state = stored_consumers(self.rows)[ID].take_over(self.now_us, self.end)
        self.nothing_is_lost()

    @invariant()
    def nothing_is_lost(self) -> None:
        table = self.state.table
        for offset in range(table.next_offset):
            is_kept = table.entry(offset) is not None
            assert is_kept or offset in self.acked or letter_id(ID, offset) in self.stored, offset

    @invariant()
    def what_has_ended_waits_for_its_letter(self) -> None:
        ended = set(self.state.exhausted(1_000))
        assert ended <= self.letters.offsets

    def teardown(self) -> None:
        """Once nothing fails any more, each message is acked or in the other stream, and none is pending."""
        for _ in range(3 * self.end + 5):
            self.wait(RETRY_US_MAX // 1_000)
            self.send()
            while self.flight:
                self.arrive(0, "stored")
        assert self.state.table.count == 0
        for offset in range(self.end):
            assert offset in self.acked or letter_id(ID, offset) in self.stored


TestDeadLetters = DeadLetters.TestCase
