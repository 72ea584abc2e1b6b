"""What brokers are held to about users' rights: each promise, kept and broken."""

from __future__ import annotations

import pytest

from penstock.access.handshake import Principal
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset, PartitionId, StreamId
from penstock.messages import (
    AlterStreamRequest,
    FetchRequest,
    MetadataRequest,
    MetadataResponse,
    Request,
    StatusRequest,
    TruncateRequest,
)
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.broker.broker import SimBroker
from tests.sim.checks.rights import Rights
from tests.sim.models.logins import ADMIN, APP
from tests.unit.sim.guarded_world import world

DONE = MetadataResponse(brokers=(), streams=())
DENIED = RemoteError(ErrorCode.NOT_AUTHORIZED, "no rule allows it")
STREAM_ID = 5


@pytest.fixture
def broker() -> SimBroker:
    return world().brokers[1]


@pytest.fixture
def rights(broker: SimBroker) -> Rights:
    made = Rights(world()._around)
    made.names[STREAM_ID] = "t0"
    made.histories[STREAM_ID] = world().checks.of("t0.>", 0)
    made.acted(broker)
    return made


def who(broker: SimBroker, name: str) -> Principal:
    assert broker.node is not None
    user = inspector.users(broker.node)[1][name]
    return Principal(name, user.made_index, "main", user.credentials[0].mark)


def carried_out(rights: Rights, broker: SimBroker, name: Principal | None, request: Request, since: int = 0) -> None:
    rights.asks(broker, name, request, b"", since)(DONE)


def refused(rights: Rights, broker: SimBroker, name: Principal | None, request: Request) -> None:
    rights.asks(broker, name, request, b"", 0)(DENIED)


def test_who_may_is_served(rights: Rights, broker: SimBroker) -> None:
    carried_out(rights, broker, who(broker, ADMIN), StatusRequest())
    carried_out(rights, broker, who(broker, APP), FetchRequest(stream_id=StreamId(STREAM_ID), offset=Offset(0)))


def test_who_may_is_refused(rights: Rights, broker: SimBroker) -> None:
    with pytest.raises(ViolationError, match="who may"):
        refused(rights, broker, who(broker, APP), MetadataRequest())


def test_who_may_not_is_refused(rights: Rights, broker: SimBroker) -> None:
    refused(rights, broker, who(broker, APP), StatusRequest())
    refused(rights, broker, None, MetadataRequest())


def test_who_may_not_is_served(rights: Rights, broker: SimBroker) -> None:
    with pytest.raises(ViolationError, match="StatusRequest for app, who may not"):
        carried_out(rights, broker, who(broker, APP), StatusRequest())


def test_nobody_is_served(rights: Rights, broker: SimBroker) -> None:
    with pytest.raises(ViolationError, match="for None, who may not"):
        carried_out(rights, broker, None, MetadataRequest())


def test_who_has_another_secret_by_now_is_served(rights: Rights, broker: SimBroker) -> None:
    before = who(broker, ADMIN)._replace(mark=b"of before")
    with pytest.raises(ViolationError, match="who may not"):
        carried_out(rights, broker, before, MetadataRequest())


def test_a_broker_that_lacks_what_was_acknowledged_serves_somebody(rights: Rights, broker: SimBroker) -> None:
    assert broker.node is not None
    index = inspector.users(broker.node)[0]
    request = FetchRequest(stream_id=StreamId(STREAM_ID), offset=Offset(0))
    carried_out(rights, broker, who(broker, APP), request, since=index)
    with pytest.raises(ViolationError, match="were acknowledged"):
        carried_out(rights, broker, who(broker, APP), request, since=index + 1)


def test_an_alteration_that_was_refused_is_there(rights: Rights, broker: SimBroker) -> None:
    assert broker.node is not None
    there = inspector.segment_bytes(broker.node, "t0")
    request = AlterStreamRequest(name="t0", changes={"segment_bytes": there})
    rights.asks(broker, None, request, b"", 0)(DENIED)
    rights.ended(broker)
    with pytest.raises(ViolationError, match=f"{there}, which was refused to None"):
        rights.acted(broker)


def test_only_who_may_can_ask_to_give_up_a_beginning(rights: Rights, broker: SimBroker) -> None:
    history = rights.histories[STREAM_ID]
    request = TruncateRequest(stream_id=StreamId(STREAM_ID), partition=PartitionId(0), before=Offset(1 << 20))
    before = history.truncating
    rights.asks(broker, None, request, b"", 0)
    assert history.truncating == before
    rights.asks(broker, who(broker, APP), request, b"", 0)
    assert history.truncating == 1 << 20


def test_a_broker_that_does_not_know_judges_nobody(rights: Rights, broker: SimBroker) -> None:
    error = RemoteError(ErrorCode.NOT_YET, "it has not heard from the others")
    rights.asks(broker, who(broker, ADMIN), MetadataRequest(), b"", 0)(error)
