"""Reads a JetStream stream back for verification: a pull consumer over a raw socket, every value through a checksum.

Rules: Nothing here is measured. The number of messages is that of the stream's state; a missing message is an error,
not the end of the stream. Every request has its own reply subject, because nats-server may report the end of a request
after the next one was sent. In a cluster the server may not know a new consumer yet (503): the request is repeated only
then.
"""

from __future__ import annotations

import time

import msgspec

from penstock.base import limits
from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load.content import Content, Tally
from penstock_bench.load.nats_socket import NatsSocket, inbox

_BATCH = 2_000
_BATCH_BYTES_MAX = 16 << 20
_NO_RESPONDERS = b"NATS/1.0 503"
_ASK_AGAIN_S = 0.02


def read_back(nats: Address, stream: str, *, ordered: bool) -> Content:
    """Return the content of the whole stream."""
    with NatsSocket(nats) as connection:
        state = connection.request(f"$JS.API.STREAM.INFO.{stream}", {})["state"]
        config = {"ack_policy": "none", "deliver_policy": "all", "replay_policy": "instant", "mem_storage": True}
        made = connection.request(f"$JS.API.CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": config})
        prefix = inbox()
        connection.send(b"SUB %b.* 1\r\n" % prefix.encode())
        ask = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{made['name']}"
        tally = Tally()
        deadline_s = time.monotonic() + limits.BENCH_START_S
        while (left := state["messages"] - tally.messages) > 0:  # decreases: a unique reply suffix
            is_known = _read_some(connection, ask, f"{prefix}.{left}".encode(), tally, left)
            if not is_known:
                if time.monotonic() > deadline_s:
                    raise OperationalError(f"JetStream has no consumer {made['name']} after {limits.BENCH_START_S:g} s")
                time.sleep(_ASK_AGAIN_S)
        return tally.content(ordered=ordered)


def _read_some(connection: NatsSocket, ask: str, reply: bytes, tally: Tally, left: int) -> bool:
    """Send one request and receive until it is served; return False if there is no responder."""
    wanted = min(_BATCH, left)
    body = msgspec.json.encode({"batch": wanted, "max_bytes": _BATCH_BYTES_MAX, "no_wait": True})
    connection.send(b"PUB %b %b %d\r\n%b\r\n" % (ask.encode(), reply, len(body), body))
    came = 0
    while came < wanted:
        for delivery in connection.deliveries():
            if delivery.headers:  # a status: the request is served or failed
                if delivery.subject != reply:
                    continue  # a status of the previous request
                if came == 0 and delivery.headers.startswith(_NO_RESPONDERS):
                    return False
                if came == 0:
                    said = delivery.headers.split(b"\r\n")[0].decode("utf-8", "replace")
                    raise OperationalError(f"JetStream gives no further message: {said}")
                return True
            tally.add((delivery.payload,))
            came += 1
    return True
