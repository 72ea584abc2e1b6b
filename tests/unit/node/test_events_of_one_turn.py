"""Several events before the node's next step, as the driver passes them on in one turn of its loop.

What one event has done to a partition counts for the next one: the driver takes steps only at the end of the turn.
"""

from __future__ import annotations

from penstock.base import limits
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.messages import AppendRequest, DeleteStreamRequest, FetchRequest
from tests.groups import group_of
from tests.unit.node.harness import Broker, batch_of
from tests.unit.node.test_members import with_stream


def _delete_without_a_step(broker: Broker, name: str) -> None:
    """The stream is deleted; the step that says so is not taken yet. Other disk work stays open."""
    kept = broker.disk
    broker.disk = []
    broker.open_requests.add("delete")
    broker.node.request("delete", DeleteStreamRequest(name=name), b"", broker.clock.now, None)
    while name in [one.name for one in broker.node.image.streams.values()]:
        if (step := broker.node.take()) is not None:
            broker.do(step)
        executed = broker.execute()
        broker.node.complete(executed.work, executed.error, broker.clock.now)
    broker.disk = kept + broker.disk


def _error(broker: Broker, caller: str) -> ErrorCode:
    response = broker.replies[caller].response
    assert isinstance(response, RemoteError)
    return ErrorCode(response.code)


def test_append_checked_just_after_its_stream_was_deleted_is_answered() -> None:
    broker = Broker().start()
    broker.create("orders")
    stream_id = broker.stream_id("orders")
    broker.disk_runs_at_once = False
    caller = str(broker.request(AppendRequest(stream_id=stream_id), batch_of([("orders.x", None, b"1", None)])))
    checked = broker.execute()
    _delete_without_a_step(broker, "orders")
    broker.node.complete(checked.work, checked.error, broker.clock.now)
    broker.settle()
    assert _error(broker, caller) == ErrorCode.STREAM_CHANGED


def test_fetch_whose_time_is_over_just_after_its_stream_was_deleted_is_answered() -> None:
    broker = Broker().start()
    broker.create("orders")
    request = FetchRequest(stream_id=broker.stream_id("orders"), offset=Offset(0), wait_ms_max=500)
    caller = str(broker.request(request))
    broker.disk_runs_at_once = False
    _delete_without_a_step(broker, "orders")
    broker.clock.advance_ms(600)
    broker.tick_node()
    broker.settle()
    assert _error(broker, caller) == ErrorCode.STREAM_CHANGED


def test_messages_that_arrive_just_after_their_stream_was_deleted_are_dropped() -> None:
    broker = Broker().start()
    broker.create("orders")
    (sid,) = broker.nats.sids("orders.>")
    broker.disk_runs_at_once = False
    _delete_without_a_step(broker, "orders")
    broker.node.messages_received({sid: group_of([(b"orders.x", b"reply", None, b"1")])}, broker.clock.now)
    broker.settle()
    assert broker.acked() == []
    assert broker.node.in_flight_bytes == 0


def test_subscription_that_was_refused_just_before_the_connection_was_lost_is_refused_no_more() -> None:
    broker = Broker().start()
    broker.create("orders")
    (sid,) = broker.nats.sids("orders.>")
    (partition,) = (one for one in broker.node._partitions.values() if one.sid == sid)
    broker.nats.disconnect()
    broker.node.subscription_refused(sid, "permissions violation", broker.clock.now)
    broker.node.nats_lost(broker.clock.now, "the connection broke")
    broker.turn()
    assert partition.refusal == ""


def test_subscription_that_was_refused_just_before_the_broker_is_mute_is_refused_no_more() -> None:
    """That it is mute is found with the next event: only then it does what the session's end requires."""
    brokers = with_stream()
    led = brokers.led("s")
    (sid,) = led.nats.sids("s")
    (partition,) = led.node._partitions.values()
    brokers.clock.advance_ms(limits.SESSION_MS)
    led.node.subscription_refused(sid, "permissions violation", brokers.clock.now)
    led.node.keys_read(brokers.clock.now)
    led.turn()
    assert partition.is_mute
    assert partition.refusal == ""
