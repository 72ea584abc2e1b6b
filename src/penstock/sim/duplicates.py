"""The ack of a duplicate names where its first is: in the leader's own log, at that offset, there is that message id.

Rules: looked at when the broker gives the ack. What its publisher hears later is held against what was acked and read;
but news of what has been lost meanwhile are excused there, and here they are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.node.step import NatsAnswers
from penstock.sim import inspector
from penstock.sim.checks import Checks
from penstock.sim.refusals import commands_in
from penstock.sim.violation import ViolationError

if TYPE_CHECKING:
    from penstock.sim.broker import SimBroker

_AGAIN = b'"duplicate":true'


class _Ack(msgspec.Struct):
    offset: int | None = None  # None: in another partition, which this broker may not have; see `sending`


_decoder = msgspec.json.Decoder(_Ack)


def check(checks: Checks, broker: SimBroker, answers: Sequence[NatsAnswers]) -> None:
    """Look at the acks among what a broker tells publishers."""
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
                continue  # or given up since
            headers = inspector.headers_at(broker.node, look, offset) if offset < look.log_end else None
            checks.duplicates += 1
            if b"Nats-Msg-Id: %b\r\n" % message_id not in (headers or b""):
                text = f"{history.name()}: {broker.name} has acked {message_id!r} as a duplicate of what is at {offset}"
                raise ViolationError(f"{text}, and there is {headers!r}: {look}")
