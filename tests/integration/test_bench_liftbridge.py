"""Liftbridge as a system under test. No Liftbridge runs here: a fake speaks its protocol, on a real nats-server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from penstock.base.addresses import Address
from penstock.base.errors import OperationalError
from penstock_bench.load import liftbridge_format
from penstock_bench.load.content import difference
from penstock_bench.load.generator import Load
from penstock_bench.load.nats_socket import NatsSocket
from penstock_bench.load.readers import ReadTask
from penstock_bench.machine import worker
from penstock_bench.measure.rounds import untrue
from penstock_bench.systems import liftbridge
from penstock_bench.systems.liftbridge import LiftbridgeLog, LiftbridgeSystem, variants
from penstock_bench.systems.system import System, nats_server
from tests.extent import needs_time

pytestmark = needs_time

LOAD = Load(size=100, messages=500, window=50, seconds_max=20.0)
ACK_HEADER = bytes.fromhex("b90e43b400080001")


def text(message: bytes, number: int) -> bytes:
    value = dict(liftbridge_format.fields(message))[number]
    assert isinstance(value, bytes)
    return value


def field(number: int, data: bytes) -> bytes:
    assert len(data) < 128
    return bytes((number << 3 | 2, len(data))) + data


class FakeLiftbridge(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A protocol-level fake: one stream at a time, kept in a list; acks at once, with what `ack_end` adds."""

    def __init__(self, nats: Address) -> None:
        self.stored: list[bytes] = []
        self.ack_end = b""
        self.deleted: list[bytes] = []
        self._nats = NatsSocket(nats)
        self._nats.socket.settimeout(None)
        self._thread: threading.Thread | None = None

    def service(self, handler_call_details: Any) -> Any:
        """grpc's."""
        name = handler_call_details.method.rpartition("/")[2]
        if name == "Subscribe":
            return grpc.unary_stream_rpc_method_handler(self.subscribe)
        calls = {"CreateStream": self.create, "DeleteStream": self.delete, "FetchMetadata": self.metadata}
        return grpc.unary_unary_rpc_method_handler(calls[name])

    def metadata(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return b""

    def create(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        if self._thread is not None:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, "stream already exists")
        self._nats.send(b"SUB %b 7\r\n" % text(request, 1))
        self._nats.barrier()
        self._thread = threading.Thread(target=self.serve, args=(text(request, 2),), daemon=True)
        self._thread.start()
        return b""

    def delete(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self.deleted.append(text(request, 1))
        return b""

    def subscribe(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield b""
        for value in self.stored:
            yield field(3, value)
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")

    def serve(self, stream: bytes) -> None:
        """Until the connection is closed."""
        while True:
            try:
                deliveries = self._nats.deliveries()
            except (OSError, OperationalError):
                return
            for delivery in deliveries:
                message = delivery.payload[8:]
                self.stored.append(text(message, 3))
                ack = ACK_HEADER + field(1, stream) + self.ack_end
                self._nats.send(b"PUB %b %d\r\n%b\r\n" % (text(message, 10), len(ack), ack))

    def close(self) -> None:
        """End the thread."""
        self._nats.socket.shutdown(2)
        if self._thread is not None:
            self._thread.join(10)
        self._nats.close()


@contextmanager
def running(tmp_path: Path) -> Iterator[tuple[FakeLiftbridge, System]]:
    """The fake, and the system that finds it."""
    with nats_server(tmp_path / "nats") as (nats, _):
        fake = FakeLiftbridge(nats)
        server = grpc.server(ThreadPoolExecutor(4), handlers=(fake,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            (only,) = variants(Address("127.0.0.1", port), nats)
            with only.start(tmp_path) as system:
                yield fake, system
        finally:
            server.stop(None).wait(10)
            fake.close()


@pytest.mark.parametrize("publishers", [1, 3])
def test_what_was_acked_is_read_back_and_the_stream_deleted(tmp_path: Path, publishers: int) -> None:
    with running(tmp_path) as (fake, system):
        with system.log() as log:
            load = Load(size=100, messages=500, window=50, publishers=publishers, seconds_max=20.0)
            published = log.publish(load)
            assert (published.acks, published.errors) == (500, 0)
            assert untrue(log, published, ordered=publishers == 1) is None
            assert isinstance(log, LiftbridgeLog)
            task = ReadTask(str(log.service), log.stream, "", 500)
            assert difference(published.sent, worker.run(liftbridge.read, task, timeout_s=150).found) is None
            assert set(system.processes) == {"liftbridge", "nats-server"}
            assert set(published.cpu_seconds) == {"liftbridge", "nats-server", "generator"}
        assert len(fake.deleted) == 1


def test_a_log_that_lost_a_message_voids_the_round(tmp_path: Path) -> None:
    with running(tmp_path) as (fake, system), system.log() as log:
        published = log.publish(LOAD)
        del fake.stored[100]
        assert untrue(log, published, ordered=True) == "500 messages were acked, 499 came back"


def test_an_ack_with_an_error_voids_the_round(tmp_path: Path) -> None:
    with running(tmp_path) as (fake, system), system.log() as log:
        fake.ack_end = b"\x50\x03"  # too large
        void = untrue(log, log.publish(Load(size=100, messages=5)), ordered=True)
        assert void is not None
        assert "5 answers were no acks" in void


def test_what_liftbridge_refuses_is_said(tmp_path: Path) -> None:
    with running(tmp_path) as (_, system), system.log(), pytest.raises(OperationalError, match="stream already exists"):
        system.log().__enter__()


@pytest.mark.parametrize("who", ["Liftbridge", "no nats-server answers"])
def test_nobody_there_is_said_before_anything_is_measured(tmp_path: Path, who: str) -> None:
    with running(tmp_path) as (_, system), socket.create_server(("127.0.0.1", 0)) as server:
        nobody = Address("127.0.0.1", server.getsockname()[1])
        server.close()
        assert isinstance(system, LiftbridgeSystem)
        places = (nobody, system.nats) if who == "Liftbridge" else (system.service.address, nobody)
        with pytest.raises(OperationalError, match=f"{who} at {nobody}: " if who == "Liftbridge" else who):
            variants(*places)[0].start(tmp_path).__enter__()
