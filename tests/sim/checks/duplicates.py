"""Check: the ack of a duplicate names the offset of a message with that id in the leader's own log.

Rules: The check runs when the broker gives the ack. `checks` compares the ack again when its publisher receives it, but
excuses messages that were permissibly lost meanwhile; this check excuses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.node.step import NatsAnswers
from penstock.testing.errors import ViolationError
from penstock.testing.simulation import inspector
from penstock.testing.simulation.checks.checks import Checks
from tests.sim.checks.refusals import commands_in

if TYPE_CHECKING:
    from penstock.testing.simulation.broker.broker import SimBroker

_AGAIN = b'"duplicate":true'


class _Ack(msgspec.Struct):
    offset: int | None = None  # None: in another partition, which this broker may not have; see `sending`


_decoder = msgspec.json.Decoder(_Ack)


def check(checks: Checks, broker: SimBroker, answers: Sequence[NatsAnswers]) -> None:
    """Check the acks among a broker's answers to publishers."""
    assert broker.node is not None
    for one in answers:
        if _AGAIN not in one.commands or (look := inspector.listening(broker.node, one.sid)) is None:
            continue
        history = checks.of(look.subject, look.partition)
        if history.was_damaged_on(broker.broker_id):
            continue
        for reply, body in commands_in(one.commands):
            if _AGAIN not in body or (message_id := checks.message_ids.get(reply)) is None:
                continue
            offset = _decoder.decode(body).offset
            if offset is None or offset < look.log_start:
                continue  # or truncated since
            headers = inspector.headers_at(broker.node, look, offset) if offset < look.log_end else None
            checks.duplicates += 1
            if b"Nats-Msg-Id: %b\r\n" % message_id not in (headers or b""):
                text = f"{history.name()}: {broker.name} has acked {message_id!r} as a duplicate of what is at {offset}"
                raise ViolationError(f"{text}, and there is {headers!r}: {look}")
