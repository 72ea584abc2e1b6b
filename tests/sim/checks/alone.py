"""Check: a leader that is alone in the ISR acks only what is on its own disk, whatever the ack says of syncs.

Rules: The check runs when the broker gives the ack, because the message may reach the disk later. Durability `os`
promises no disk write. The ack of a duplicate repeats an earlier commit, possibly by a larger ISR: see `duplicates`.
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

_BY_ONE = b'"replicas":1,'
_AGAIN = b'"duplicate":true'


class _Ack(msgspec.Struct):
    offset: int


_decoder = msgspec.json.Decoder(_Ack)


def check(checks: Checks, broker: SimBroker, answers: Sequence[NatsAnswers]) -> None:
    """Check the acks among a broker's answers to publishers."""
    assert broker.node is not None
    for one in answers:
        if _BY_ONE not in one.commands or (look := inspector.listening(broker.node, one.sid)) is None:
            continue
        history = checks.of(look.subject, look.partition)
        if history.is_os:
            continue
        for _, body in commands_in(one.commands):
            if _BY_ONE in body and _AGAIN not in body and (offset := _decoder.decode(body).offset) >= look.flushed_end:
                text = f"{history.name()}: {broker.name} alone has acked offset {offset}, and its disk has it up to"
                raise ViolationError(f"{text} {look.flushed_end}: {look}")
