"""The model of nats-server, with the real session on it."""

from __future__ import annotations

from random import Random

import pytest

from penstock.ingest.nats import BarrierReached, NatsSession, SessionReady
from penstock.sim.nats import NAME, NatsServer, matches
from penstock.sim.network import Connection, Network
from penstock.sim.scheduler import Scheduler
from penstock.sim.trace import Trace


class Stage:
    """The model of nats-server with one broker's session on it."""

    def __init__(self, seed: int = 0) -> None:
        self.scheduler = Scheduler()
        self.network = Network(self.scheduler, Random(seed))
        self.server = NatsServer(self.network, Random(seed), Trace(self.scheduler))
        self.server.start()
        self.session = NatsSession(name="b1", version="1")
        self.rest = b""
        self.values: list[bytes | None] = []
        self.events: list[object] = []
        self.lost = 0
        self.answers: list[bytes] = []
        self.connection: Connection | None = None
        self.network.connect("b1", NAME, self._connected, self._lost)
        self.wait()

    def _connected(self, connection: Connection | None) -> None:
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
