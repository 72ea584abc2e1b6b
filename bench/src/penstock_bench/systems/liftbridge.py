"""An externally run Liftbridge: written through its NATS server; created, read and deleted through its gRPC service.

Rules: Only the two given addresses are contacted. Every round gets a stream of one partition and one replica, at the
server's defaults, which is deleted afterwards. The generator is that of every other product; only the bytes around a
value differ. Liftbridge has no setting to sync before the ack, so there is one variant.

| variant      | configuration                                                                                  |
|--------------|------------------------------------------------------------------------------------------------|
| `liftbridge` | its defaults: acked once the leader has handed the message to the page cache; it never syncs   |
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.base.addresses import Address, parse_address
from penstock.base.errors import OperationalError
from penstock.base.limits import BENCH_SECONDS_MAX, BENCH_START_S
from penstock_bench.extras import LIFTBRIDGE, imported
from penstock_bench.load import liftbridge_format
from penstock_bench.load.content import Content, Tally
from penstock_bench.load.nats_socket import NatsSocket
from penstock_bench.load.readers import Clock, Consumed, ReadTask, chained
from penstock_bench.machine.processes import listening_on
from penstock_bench.systems.system import MeasuredLog, NatsLog, System, Variant

if TYPE_CHECKING:
    import grpc

_SERVICE = "/proto.API/"
# A proxy from the environment would be an address that the user did not give.
_OPTIONS = (("grpc.enable_http_proxy", 0),)


NAMES = ("liftbridge",)
"""The names of the variants."""


def variants(service: Address, nats: Address) -> tuple[Variant, ...]:
    """Return the variants of the Liftbridge with this gRPC service and this NATS server."""
    return (Variant(NAMES[0], "Liftbridge (default: never syncs)", "liftbridge", _running(service, nats)),)


def _running(service: Address, nats: Address) -> Callable[[Path], AbstractContextManager[System]]:
    @contextmanager
    def start(folder: Path) -> Iterator[System]:
        with connected(service) as calls:
            calls.call("FetchMetadata", b"")
            _is_nats(nats)
            yield LiftbridgeSystem(calls, nats)

    return start


def _is_nats(address: Address) -> None:
    try:
        NatsSocket(address).close()
    except OSError as error:
        raise OperationalError(f"no nats-server answers at {address}: {error}") from None


@contextmanager
def connected(address: Address) -> Iterator[Service]:
    """Connect to the gRPC service."""
    grpc = imported(LIFTBRIDGE)
    with grpc.insecure_channel(str(address), options=_OPTIONS) as channel:
        yield Service(channel, address)


class Service:
    """The needed calls of Liftbridge's gRPC service. A failed call raises OperationalError."""

    def __init__(self, channel: grpc.Channel, address: Address) -> None:
        self.address = address
        self._channel = channel

    def call(self, method: str, request: bytes) -> None:
        """Make one call and ignore its answer."""
        self._checked(lambda: self._channel.unary_unary(_SERVICE + method)(request, timeout=BENCH_START_S))

    def values(self, stream: str) -> Iterator[bytes]:
        """Yield the values from the first to the currently last message."""
        subscribe = self._channel.unary_stream(_SERVICE + "Subscribe")
        answers = subscribe(liftbridge_format.subscribe(stream), timeout=2 * BENCH_SECONDS_MAX)
        try:
            while True:
                message = self._checked(lambda: next(answers, None))
                if message is None:
                    return
                if message:  # the first message is empty: it confirms the subscription
                    yield liftbridge_format.value_of(message)
        except ValueError as error:
            raise OperationalError(f"Liftbridge at {self.address} sent no message: {error}") from None
        finally:
            answers.cancel()

    def _checked(self, call: Callable[[], Any]) -> Any:
        """Return the result of `call`; None at the end position of a subscription."""
        import grpc

        try:
            return call()
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
                return None
            raise OperationalError(f"Liftbridge at {self.address}: {error.code().name}: {error.details()}") from None


class LiftbridgeLog(NatsLog):
    """A stream of Liftbridge."""

    dialect = "liftbridge"

    def __init__(self, system: LiftbridgeSystem, stream: str, subject: str) -> None:
        super().__init__(system.nats, subject, system.processes)
        self.stream = stream
        self.service = system.service.address
        self._service = system.service

    def read_back(self, *, ordered: bool) -> Content:
        """Read through a subscription from the first to the currently last message."""
        tally = Tally()
        tally.add(self._service.values(self.stream))
        return tally.content(ordered=ordered)


def read(task: ReadTask) -> Iterator[Consumed]:
    """Worker: read a stream as single messages."""
    with connected(parse_address(task.address)) as service:
        next(service.values(task.stream), None)  # an untimed first read, as in every reader
        clock = Clock(task.watched)
        yield clock.consumed([chained(service.values(task.stream)) for _ in range(task.passes)])


class LiftbridgeSystem(System):
    """External Liftbridge and NATS server. Their CPU time is known if they run on this machine and for this user."""

    def __init__(self, service: Service, nats: Address) -> None:
        self.service = service
        self.nats = nats
        found = {"liftbridge": listening_on(service.address), "nats-server": listening_on(nats)}
        self.processes = {name: process_id for name, process_id in found.items() if process_id is not None}

    @contextmanager
    def log(self) -> Iterator[MeasuredLog]:
        name = f"penstock-bench-{secrets.token_hex(8)}"
        self.service.call("CreateStream", liftbridge_format.create_stream(name, name))
        try:
            yield LiftbridgeLog(self, name, name)
        finally:
            self.service.call("DeleteStream", liftbridge_format.delete_stream(name))
