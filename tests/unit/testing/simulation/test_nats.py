"""The model of nats-server, with the real session on it."""

from __future__ import annotations

from random import Random

import pytest

from penstock.ingest.nats import BarrierReached, NatsSession, SessionReady
from penstock.testing.simulation.nats import NAME, NatsServerModel, matches
from penstock.testing.simulation.network import Network, SimConnection
from penstock.testing.simulation.scheduler import Scheduler
from penstock.testing.simulation.trace import Trace


class Stage:
    """The model of nats-server with one broker's session on it."""

    def __init__(self, seed: int = 0) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, Random(seed))
        self.server = NatsServerModel(self.network, Random(seed), Trace(self.scheduler))
        self.server.start()
        self.session = NatsSession(name="b1", version="1")
        self.rest = b""
        self.values: list[bytes | None] = []
        self.events: list[object] = []
        self.lost = 0
        self.answers: list[bytes] = []
        self.connection: SimConnection | None = None
        self.network.connect("b1", NAME, self._connected, self._lost)
        self.wait()

    def _connected(self, connection: SimConnection | None) -> None:
        assert connection is not None
        self.connection = connection
        self.server.greet(connection, self._take)

    def _lost(self) -> None:
        self.lost += 1

    def _take(self, data: bytes) -> None:
        buffer = self.rest + data
        received = self.session.receive(buffer, 0, len(buffer), 0)
        self.rest = buffer[received.position :]
        for group in received.groups.values():
            self.values += [group.value(row) for row in range(len(group))]
        self.events += received.events
        self.write(self.session.take_output())

    def write(self, data: bytes) -> None:
        connection = self.connection
        assert connection is not None
        if data:
            connection.send(lambda: self.server.receive(connection, data))

    def wait(self) -> None:
        self.scheduler.run_until(self.scheduler.now_us + 1_000_000)

    def publish(self, subject: bytes, value: bytes) -> None:
        self.server.publish(subject, value, b"_INBOX.%b" % value, self.answers.append)


@pytest.mark.parametrize("seed", range(10))
def test_the_real_session_connects_subscribes_and_hears_messages_in_order(seed: int) -> None:
    stage = Stage(seed)
    assert [type(event) for event in stage.events] == [SessionReady]
    stage.session.subscribe(7, "a.>")
    token = stage.session.barrier()
    stage.write(stage.session.take_output())
    stage.wait()
    assert stage.events[1:] == [BarrierReached(token)]
    values = [b"%d" % number for number in range(30)]
    for value in values:
        stage.publish(b"a.x", value)
    stage.wait()
    assert stage.values == values


def test_nobody_is_subscribed() -> None:
    stage = Stage()
    stage.publish(b"a.x", b"1")
    stage.wait()
    assert stage.answers == [b""]


def test_an_answer_reaches_its_publisher_unless_he_has_gone() -> None:
    stage = Stage()
    stage.session.subscribe(7, "a.>")
    stage.write(stage.session.take_output())
    stage.wait()
    stage.publish(b"a.x", b"1")
    stage.publish(b"a.x", b"2")
    stage.server.forget(b"_INBOX.2")
    stage.write(b"PUB _INBOX.1 4\r\n{a}\n\r\nPUB _INBOX.2 3\r\n{b}\r\n")
    stage.wait()
    assert stage.answers == [b"{a}\n"]


def test_an_answer_may_come_in_pieces() -> None:
    stage = Stage()
    stage.session.subscribe(7, "a.>")
    stage.write(stage.session.take_output())
    stage.wait()
    stage.publish(b"a.x", b"1")
    stage.write(b"PUB _INBOX.1 3\r\n{")
    stage.write(b"a}\r\nPING\r\n")
    stage.wait()
    assert stage.answers == [b"{a}"]


def test_what_is_on_its_way_is_lost_with_the_connection() -> None:
    stage = Stage()
    stage.session.subscribe(7, "a.>")
    stage.write(stage.session.take_output())
    stage.wait()
    stage.server.stop()
    stage.publish(b"a.x", b"1")
    stage.wait()
    assert stage.lost == 1
    assert stage.values == []
    assert stage.answers == [b""]


@pytest.mark.parametrize(
    ("pattern", "subject", "covers"),
    [
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a", "a", True),
        ("a", "b", False),
    ],
)
def test_wildcards(pattern: str, subject: str, covers: bool) -> None:
    assert matches(tuple(pattern.encode().split(b".")), tuple(subject.encode().split(b"."))) is covers


class Program:
    """A program with a client of its own on the model: it says lines, and keeps what it is told."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.said = b""
        self.connection: SimConnection | None = None
        self._stage = stage
        stage.network.connect(name, NAME, self._connected, lambda: None)
        stage.wait()

    def _connected(self, connection: SimConnection | None) -> None:
        assert connection is not None
        self.connection = connection
        self._stage.server.greet(connection, self._take, is_program=True)

    def _take(self, data: bytes) -> None:
        self.said += data

    def says(self, data: bytes) -> bytes:
        """What it is told upon that."""
        connection = self.connection
        assert connection is not None
        before = len(self.said)
        connection.send(lambda: self._stage.server.receive(connection, data))
        self._stage.wait()
        return self.said[before:]


def test_a_program_publishes_to_brokers_and_to_other_programs_and_hears_what_brokers_answer() -> None:
    stage = Stage()
    stage.session.subscribe(7, "a.>")
    stage.write(stage.session.take_output())
    one, other = Program(stage, "p1"), Program(stage, "p2")
    other.says(b"SUB a.x 3\r\n")
    one.says(b"SUB _INBOX.1 9\r\n")
    assert one.says(b"HPUB a.x _INBOX.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n") == b""
    assert other.said.endswith(b"HMSG a.x 3 _INBOX.1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n")
    assert stage.values == [b"hi"]
    stage.write(b"PUB _INBOX.1 2\r\n{}\r\n")
    stage.wait()
    assert one.said.endswith(b"MSG _INBOX.1 9 2\r\n{}\r\n")


def test_a_program_hears_that_nobody_is_there_and_no_more_than_it_asked_for() -> None:
    stage = Stage()
    one = Program(stage, "p1")
    one.says(b"SUB _INBOX.* 9\r\nUNSUB 9 2\r\n")
    nobody = b"HMSG _INBOX.1 9 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    assert one.says(b"PUB a _INBOX.1 1\r\nx\r\n") == nobody
    assert one.says(b"PUB a _INBOX.1 1\r\nx\r\nPING\r\n") == nobody + b"PONG\r\n"
    assert one.says(b"PUB a _INBOX.1 1\r\nx\r\n") == b""


def test_of_a_queue_one_gets_a_message() -> None:
    stage = Stage()
    members = [Program(stage, f"p{number}") for number in range(3)]
    for member in members:
        member.says(b"SUB work crew 1\r\n")
    for _ in range(30):
        members[0].says(b"PUB work 1\r\nx\r\n")
    counts = [member.said.count(b"MSG work 1 1\r\nx\r\n") for member in members]
    assert sum(counts) == 30
    assert min(counts) > 0
