"""The ack of a duplicate is held against the log of the broker that gives it."""

from __future__ import annotations

from functools import cache

import pytest

from penstock.node.step import NatsAnswers
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from tests.extent import each_change
from tests.sim.checks import duplicates
from tests.sim.models.clients import SLOTS
from tests.sim.plan.plan import make_plan
from tests.sim.run.world import World


@cache
def world() -> World:
    """One broker that has stored messages with ids, and stands still."""
    plan = make_plan(1, 1, SLOTS)
    made = World(plan._replace(end_us=6_000_000, operations=plan.operations[:200], faults=()))
    assert not made.run().error
    return made


def said(reply: bytes, offset: int, sid: int) -> list[NatsAnswers]:
    body = b'{"stream":"s","seq":%d,"offset":%d,"duplicate":true}' % (offset + 1, offset)
    return [NatsAnswers(sid, b"PUB %b %d\r\n%b\r\n" % (reply, len(body), body))]


def stored() -> tuple[bytes, int, int]:
    """The reply subject of a message with an id, where it is, and the subscription that it came by."""
    checks, node = world().checks, world().brokers[1].node
    assert node is not None
    for sid in node._listener.subscriptions.by_sid:
        look = inspector.listening(node, sid)
        assert look is not None
        places = {value.rstrip(b"."): at for value, at in checks.of(look.subject, look.partition).places.items()}
        for reply, message_id in checks.message_ids.items():
            if (offset := places.get(message_id, -1)) > look.log_start:  # one is before it, too
                return reply, offset, sid
    raise AssertionError("nothing with an id was stored")


@each_change
def test_what_is_there_is_acked_again() -> None:
    reply, offset, sid = stored()
    before = world().checks.duplicates
    duplicates.check(world().checks, world().brokers[1], said(reply, offset, sid))
    assert world().checks.duplicates == before + 1


@pytest.mark.parametrize("away", [1, -1, 1_000_000])
def test_another_message_is_there_or_none(away: int) -> None:
    reply, offset, sid = stored()
    with pytest.raises(ViolationError, match="as a duplicate of what is at"):
        duplicates.check(world().checks, world().brokers[1], said(reply, offset + away, sid))


def test_what_came_without_an_id_is_not_looked_up() -> None:
    _, offset, sid = stored()
    before = world().checks.duplicates
    duplicates.check(world().checks, world().brokers[1], said(b"_INBOX.nobody", offset + 1, sid))
    assert world().checks.duplicates == before
