"""What clients know of a consumer with acks: permitted losses and resets end what is known, and no more."""

from __future__ import annotations

import msgspec

from penstock.base.config import StreamConfig
from penstock.testing.simulation.checks.checks import PartitionHistory, SentMessage
from penstock.testing.simulation.nats import PublishedMessage
from tests.sim.models.api_stream import ApiStream
from tests.sim.models.crews import Crew
from tests.sim.models.working import CREWS

_MESSAGES = 5
_CREATED = "2026-01-01T00:00:00Z"
_S = 1_000_000
INFO = {
    "created": _CREATED,
    "ack_floor": {"consumer_seq": _MESSAGES, "stream_seq": _MESSAGES},
    "delivered": {"consumer_seq": _MESSAGES, "stream_seq": _MESSAGES},
    "num_ack_pending": 0,
    "num_pending": 0,
}


def with_messages() -> Crew:
    """Return a consumer of a stream with messages, none of which is delivered."""
    config = msgspec.convert({"name": "jobs", "subject": "jobs.g1.>"}, StreamConfig)
    history = PartitionHistory(config, 0)
    stream = ApiStream(history, is_keyed=False)
    for offset in range(_MESSAGES):
        name = b"jobs.g1.0/%d/" % offset
        stream.sends(SentMessage(b"jobs.g1.0", name, name), 0)
        history.known[offset], history.places[name] = name, offset
    crew = Crew(stream, CREWS[0])
    crew.made(_CREATED, 0)
    return crew


def ack_all(crew: Crew, now_us: int) -> None:
    """Deliver each message, and ack it."""
    for offset in range(_MESSAGES):
        reply = b"$JS.ACK.jobs.plain.1.%d.%d.1.0" % (offset + 1, offset + 1)
        name = b"jobs.g1.0/%d/" % offset
        one = crew.received(PublishedMessage(b"jobs.g1.0", reply, b"", name, decided_us=now_us), now_us)
        crew.sends_done(one)


def test_acks_may_be_there_after_a_permitted_loss() -> None:
    crew = with_messages()
    ack_all(crew, 10 * _S)
    crew.stream.history.cuts.append((1, _MESSAGES))
    crew.told(crew.asked(), INFO, 60 * _S)
    crew.told(crew.asked(), INFO, 61 * _S)
    assert crew.undelivered() == []


def test_a_reset_may_be_there_after_a_permitted_loss() -> None:
    crew = with_messages()
    crew.asks_for_change(10 * _S)
    crew.changed(10 * _S, is_sure=True, begins_at=_MESSAGES)
    crew.stream.history.cuts.append((1, _MESSAGES))
    crew.told(crew.asked(), INFO, 60 * _S)
    crew.told(crew.asked(), INFO, 61 * _S)
