"""Atomic batches against a list: what readers see are the messages of committed batches, each as a whole, in order.

Batches are interleaved with each other and with other messages, in reads of any size; some lack a message, some expect
what is not so, some are never committed; time passes, and the broker crashes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.base import limits
from penstock.messages import CreateStreamResponse
from penstock.vfs.memory import Keep
from tests.extent import examples
from tests.groups import Message
from tests.unit.node.harness import Broker

INCOMPLETE, WRONG_SEQUENCE, DUPLICATE, LAST_ID = 10176, 10071, 10201, 10177


class Published(NamedTuple):
    """A message of a batch, or of none. `skipped`: its sequence is too high by so much."""

    batch: str
    commit: str
    skipped: int
    message_id: str
    expects: int  # 0: nothing; 1: the right last sequence; 2: a wrong one; 3: an id of the last message


class Passed(NamedTuple):
    """Time that passes, or a crash if it is negative."""

    ms: int


messages = st.builds(
    Published,
    st.sampled_from(["", "a", "a", "b", "b", "c"]),
    st.sampled_from(["", "", "1", "eob"]),
    st.sampled_from([0] * 12 + [1]),
    st.sampled_from([""] * 8 + ["x", "y", "z"]),
    st.sampled_from([0] * 8 + [1, 2, 3]),
)
reads = st.lists(messages, min_size=1, max_size=8)
passing = st.builds(Passed, st.sampled_from([100, limits.ATOMIC_BATCH_IDLE_MS, -1]))


class Kept(NamedTuple):
    """A message that the model keeps."""

    value: bytes
    message_id: str
    expects: int


@dataclass
class Model:
    """What is stored, the ids of it, and the batches that are not committed."""

    stored: list[bytes] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    batches: dict[str, list[Kept]] = field(default_factory=dict)

    def take(self, one: Published, value: bytes, sequence: int) -> int | str:
        """Return the answer: an error's code, `kept`, or the sequence."""
        message = Kept(value, one.message_id, one.expects)
        if not one.batch:
            return self._alone(message)
        if one.batch not in self.batches:
            if sequence != 1:
                return INCOMPLETE
            self.batches[one.batch] = []
        kept = self.batches[one.batch]
        if sequence != len(kept) + 1 or (sequence == 1 and one.commit == "eob"):
            del self.batches[one.batch]
            return INCOMPLETE
        if one.commit != "eob":
            kept.append(message)
        if not one.commit:
            return "kept"
        return self._commit(self.batches.pop(one.batch))

    def _alone(self, message: Kept) -> int | str:
        if message.expects == 2:
            return WRONG_SEQUENCE
        if message.message_id in self.ids:
            return "duplicate"
        if message.expects == 3:
            return 10070
        return self._store([message])

    def _commit(self, kept: list[Kept]) -> int | str:
        ids: set[str] = set()
        for number, one in enumerate(kept):
            if one.expects == 2 or (one.expects == 1 and number):
                return WRONG_SEQUENCE
            if one.expects == 3:
                return LAST_ID
            if one.message_id and (one.message_id in self.ids or one.message_id in ids):
                return DUPLICATE
            ids.add(one.message_id)
        return self._store(kept)

    def _store(self, kept: list[Kept]) -> int:
        self.stored += [one.value for one in kept]
        self.ids |= {one.message_id for one in kept} - {""}
        return len(self.stored)


class Publisher:
    """Gives each message its place, a value of its own and its reply subject."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._count = 0
        self.expected: dict[str, int | str] = {}

    def message(self, one: Published) -> Message:
        """Return the message as it goes over the wire; note what the model answers to it."""
        self._count += 1
        value, sequence = b"%d" % self._count, len(self._model.batches.get(one.batch, [])) + 1 + one.skipped
        # as of now: what else is in the read is told to the model first
        last = len(self._model.stored) + (0 if one.expects == 1 else 7)
        lines = f"Nats-Batch-Id: {one.batch}\r\nNats-Batch-Sequence: {sequence}\r\n" if one.batch else ""
        lines += f"Nats-Batch-Commit: {one.commit}\r\n" if one.batch and one.commit else ""
        lines += f"Nats-Msg-Id: {one.message_id}\r\n" if one.message_id else ""
        lines += "Nats-Expected-Last-Msg-Id: none\r\n" if one.expects == 3 else ""
        lines += f"Nats-Expected-Last-Sequence: {last}\r\n" if one.expects in (1, 2) else ""
        reply = f"r.{self._count}"
        self.expected[reply] = self._model.take(one, value, sequence)
        return b"s.a", reply.encode(), f"NATS/1.0\r\n{lines}\r\n".encode() if lines else None, value


def answered(broker: Broker) -> dict[str, int | str]:
    found: dict[str, int | str] = {}
    for one in broker.acks:
        if one.reply.startswith("r."):
            body = one.body
            found[one.reply] = one.err_code or ("duplicate" if "duplicate" in body else body.get("seq", "kept"))
    return found


@given(st.lists(reads | passing, max_size=12))
@settings(max_examples=examples(120), deadline=None)
def test_readers_see_whole_batches(steps: list[list[Published] | Passed]) -> None:
    broker = Broker().start()
    broker.answer(broker.create("s", allow_atomic=True), CreateStreamResponse)
    model = Model()
    publisher = Publisher(model)
    for step in steps:
        if isinstance(step, Passed):
            if step.ms < 0:
                broker = broker.crash(Keep.SYNCED).start()
            else:
                broker.tick(step.ms)
            if step.ms < 0 or step.ms >= limits.ATOMIC_BATCH_IDLE_MS:
                model.batches.clear()
        else:
            expected = publisher.expected = {}
            broker.acks.clear()
            broker.deliver([publisher.message(one) for one in step])
            # messages of a read that wait for the log to be read come a moment later
            broker.settle()
            assert answered(broker) == expected
        assert broker.values("s") == model.stored
