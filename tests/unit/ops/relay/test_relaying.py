"""A relay to NATS, run as a program would."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import ops
from penstock.base.errors import OperationalError
from tests.broker_process import running_broker
from tests.extent import needs_time


@needs_time
def test_messages_are_relayed_from_where_the_group_is_and_streams_ack_them(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("orders", "orders.>")
        client.create_stream("copies", "copies.>")
        client.append("orders", [{"subject": f"orders.{n}", "value": str(n)} for n in range(20)])
        for new in (20, 1):
            relay = ops.Relay("orders", "copies.{2}", ops.RelayOptions(group="copies"))
            relay.run(client, progress=(heard := Heard()))
            assert (relay.messages, relay.duplicates) == (new, 0)
            client.append("orders", [{"subject": "orders.last", "value": "last"}])
        assert (relay.ends, client.groups.offsets("copies", "orders")[0].offset) == ({0: 21}, 21)
        assert heard.notes == ["note: stream copies stores copies.>, and so messages that are relayed to copies.*"]
        assert [one.value for one in client.messages("copies")] == [b"%d" % n for n in range(20)] + [b"last"]

        last = ops.Relay("orders", "copies.all", ops.RelayOptions(ops.LastMessages(2), without=["Nats-*"]))
        last.run(client)
        assert last.messages == 2
        with pytest.raises(ValueError, match="this would be an endless loop"):
            ops.Relay("orders", "{subject}").run(client)
        nowhere = ops.Relay("orders", "nowhere", ops.RelayOptions(stored=True))
        with pytest.raises(OperationalError, match="no stream listens on the target"):
            nowhere.run(client, timeout=0.5)
        assert nowhere.messages == 0


@needs_time
def test_messages_of_all_subjects_are_relayed_and_their_acks_awaited(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker, penstock.connect(broker.client_address) as client:
        client.create_stream("both", ["a.*", "b.*"])
        client.create_stream("copies", ["to.a.*", "to.b.>"])
        client.append("both", [{"subject": f"{'ab'[n % 2]}.{n}", "value": str(n)} for n in range(20)])
        client.alter_stream("both", remove_subjects="a.*")
        relay = ops.Relay("both", "to.{subject}", ops.RelayOptions(stored=True))
        relay.run(client)
        assert relay.messages == 20
        assert [one.subject for one in client.messages("copies")] == [f"to.{'ab'[n % 2]}.{n}" for n in range(20)]
        with pytest.raises(ValueError, match="this would be an endless loop"):
            ops.Relay("copies", "to.b.x").run(client)


class Heard(ops.Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_mistakes_are_told_before_a_client_is_needed() -> None:
    with pytest.raises(ValueError, match="unmatched brace"):
        ops.Relay("orders", "copies.{")
    with pytest.raises(ValueError, match="is not a header name"):
        ops.Relay("orders", "copies", ops.RelayOptions(without=["a b"]))
    with pytest.raises(ops.ArgumentError, match="reads a range once"):
        ops.Relay("orders", "copies", ops.RelayOptions(end=5, follow=True))
