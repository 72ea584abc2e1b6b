"""Connections to the other brokers of the cluster: one each, with reconnects.

Rules: the node says which brokers are peers and their addresses (`set_address`), and gets `peer_up` and `peer_lost`
alternately. A request to a peer that is down is dropped. A connection that was up for a while is replaced at once when
it is lost; after a failure there is a growing backoff with jitter, so that the brokers of a cluster do not all
reconnect at the same moment. The backoff ends when that peer connects to this broker: a restarted peer must learn at
once what this broker has to send (such as who the metadata leader is). Problems with a peer are logged at intervals
that double, from a minute to an hour.

A join request goes to a broker of which only the address is known, on a connection of its own that is closed after the
answer.

Connections that other brokers make to this one belong to the server; answers go back on those.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.base import limits
from penstock.base.addresses import Address, parse_address
from penstock.base.errors import OperationalError, RemoteError
from penstock.base.ids import BrokerId
from penstock.broker.peers.peer_connection import PeerConnection, PeerState, dialling_mistake
from penstock.broker.rate_limited_log import RateLimitedLog
from penstock.broker.security.authentication import BrokerAuthenticator
from penstock.messages import JoinRequest, JoinResponse, PeerHelloRequest, Response
from penstock.node.step import JoinAttempt, PeerRequest

_log = logging.getLogger("penstock.peers")

_PEER_CONNECT_TIMEOUT_MS = 2_000  # until the socket is connected, including name resolution
_PEER_RECONNECT_MS_MIN = 50  # after the first failure; doubled for each further one
_PEER_RECONNECT_MS_MAX = 1_000
_NOBODY_YET = BrokerId(0)  # a broker of which only the address is known
_JOIN_TOKEN = 1


class PeerOwner(Protocol):
    """Receives what the connections to other brokers deliver."""

    def peer_up(self, broker_id: BrokerId, cluster_id: str) -> None:
        """The peer is up; `cluster_id` is its cluster, or empty. Requests sent before this returns are dropped."""

    def peer_lost(self, broker_id: BrokerId) -> None:
        """The peer is down; open requests will not be answered."""

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError) -> None:
        """The broker there (0: unknown) belongs to another cluster, or reports that another broker uses our id."""

    def peer_answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        """The result of a request."""

    def peer_receiving(self, broker_id: BrokerId, size_bytes: int) -> None:
        """`size_bytes` more of a large answer have arrived; 0 when the answer begins."""

    def peer_joined(self, response: JoinResponse) -> None:
        """A broker has answered the join request with the cluster's description."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Time-outs and backoff of connections to peers."""

    connect_timeout_ms: int = _PEER_CONNECT_TIMEOUT_MS
    answer_timeout_ms: int = limits.PEER_SILENCE_MS_MAX
    reconnect_ms_min: int = _PEER_RECONNECT_MS_MIN
    reconnect_ms_max: int = _PEER_RECONNECT_MS_MAX


class PeerConnections:
    """The connections to all peers. `hello`: this broker's peer hello, which may change. Use on one event loop."""

    def __init__(
        self,
        owner: PeerOwner,
        hello: PeerHelloRequest,
        elapsed_us: Callable[[], int],
        random: Callable[[], float],
        *,
        failed: Callable[[BaseException], None],
        timing: Timing | None = None,
        dialling: Callable[[str], dict[str, Any]] = lambda host: {},
        guarding: BrokerAuthenticator | None = None,
    ) -> None:
        """`failed` receives an internal error (bug) that has ended a peer's task.

        `dialling` returns the extra arguments of `create_connection` for a host, such as TLS.
        """
        self.hello = hello
        self.guarding = guarding
        self.damaged_frames = 0  # in either direction; each has cost its connection
        self._owner = owner
        self._elapsed_us = elapsed_us
        self._random = random
        self._failed = failed
        self.dialling = dialling
        self._timing = timing or Timing()
        self._links: dict[BrokerId, _Link] = {}
        self._joining: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaints = RateLimitedLog(limits.PEER_LOG_INTERVAL_MS, limits.PEER_LOG_INTERVAL_MS_MAX)

    def set_address(self, broker_id: BrokerId, address: str) -> None:
        """Keep a connection to that broker, at HOST:PORT or one of several separated by commas; empty: drop it."""
        assert broker_id != self.hello.broker_id
        places: tuple[Address, ...] = ()
        for one in filter(None, address.split(",")):
            try:
                places += (parse_address(one),)
            except ValueError as error:  # the address may be valid on other brokers
                self.complain(f"broker {broker_id}", str(error))
        link = self._links.get(broker_id)
        if link is not None and link.may_stay(places):
            return
        if link is not None:
            del self._links[broker_id]
            link.drop()
        if not places:
            return
        link = self._links[broker_id] = _Link(self, broker_id, places)
        link.task = self._begin(link.run(), f"link to broker {broker_id}")

    def came(self, broker_id: BrokerId) -> None:
        """That broker has connected to this one, so it is most likely reachable: end the backoff."""
        if (link := self._links.get(broker_id)) is not None:
            link.came.set()

    def join(self, join: JoinAttempt) -> None:
        """Send the join request to these addresses in turn until one broker has answered."""
        if self._joining is not None:
            self._joining.cancel()
        self._joining = self._begin(self._join(join), "joining")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def send(self, request: PeerRequest) -> None:
        """Send a request to a peer; dropped unless the peer is up."""
        if (link := self._links.get(request.to)) is not None and link.connection is not None:
            link.connection.send(request)

    def sweep(self) -> None:
        """Find silent peers; call about once a second."""
        for link in list(self._links.values()):
            if link.connection is not None:
                link.connection.sweep()

    def failures(self) -> list[tuple[BrokerId, str, str]]:
        """Return the id, the address and the last failure of each peer without a connection, by id."""
        links = sorted(self._links.items())
        return [(one, str(link.address), link.failure) for one, link in links if link.failure]

    def is_proven(self, broker_id: BrokerId) -> bool:
        """True if the broker at the other end of our connection has proved that it knows the cluster secret."""
        link = self._links.get(broker_id)
        return link is not None and link.connection is not None and link.connection.is_proven

    def cut(self, broker_id: BrokerId, reason: str) -> None:
        """Close the connection to that peer; it reconnects."""
        if (link := self._links.get(broker_id)) is not None and link.connection is not None:
            link.connection.end(reason)

    async def stop(self) -> None:
        """Close all connections; `peer_lost` is called for each peer that was up."""
        for broker_id in list(self._links):
            self.set_address(broker_id, "")
        if self._joining is not None:
            self._joining.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _join(self, join: JoinAttempt) -> None:
        failures = 0
        while True:
            where = join.addresses[failures % len(join.addresses)]
            try:
                self._owner.peer_joined(await self._ask_to_join(parse_address(where), join.request))
                return
            except _JoinRefusedError as error:
                self.complain("joining", f"{where}: {error}")
                self._owner.peer_refused(_NOBODY_YET, where, error.refusal)
            except (OperationalError, ValueError) as error:
                self.complain("joining", f"{where}: {error}")
            failures += 1
            await asyncio.sleep(self.pause_s(failures))

    async def _ask_to_join(self, address: Address, request: JoinRequest) -> JoinResponse:
        """Return the answer of the broker there; raise OperationalError if there is none."""
        attempt = _JoinAttempt(request, self.hello, self._elapsed_us, self.guarding)
        timeout_s = self._timing.answer_timeout_ms / 1_000
        try:
            async with asyncio.timeout(timeout_s):
                loop = asyncio.get_running_loop()
                options = self.dialling(address.host)
                await loop.create_connection(lambda: attempt.connection, address.host, address.port, **options)
                return await attempt.said
        except TimeoutError:
            raise OperationalError(f"no answer within {timeout_s:g} s") from None
        except OSError as error:
            raise OperationalError(f"no connection: {dialling_mistake(error)}") from error
        finally:
            if not attempt.said.done():
                attempt.said.cancel()
            attempt.connection.end("answered")

    def complain(self, who: str, text: str) -> None:
        """Log a problem with a peer."""
        self._tell(who, logging.WARNING, f"{who}: {text}")

    def _tell(self, kind: str, level: int, text: str) -> None:
        line = self._complaints.line(kind, text, self._elapsed_us())
        if line is not None:
            _log.log(level, "%s", line)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    # What links call

    def up(self, link: _Link, cluster_id: str) -> None:
        """The connection is up and the peer is the expected one."""
        text = f"connected to broker {link.broker_id} at {link.address}"
        self._tell(f"up {link.broker_id}", logging.INFO, text)
        self._owner.peer_up(link.broker_id, cluster_id)

    def ended(self, link: _Link, reason: str, *, was_up: bool) -> None:
        """The connection has ended, or could not be made."""
        if link.was_steady:
            self._complaints.was_well(f"broker {link.broker_id}")
        if not link.is_dropped:
            text = f"broker {link.broker_id}: {link.address}: {reason}"
            # Log the absence of a broker and an impostor at its address separately: neither may suppress the other.
            is_impostor = link.connection is not None and link.connection.is_impostor
            self._tell(
                f"impostor {link.broker_id}" if is_impostor else f"broker {link.broker_id}", logging.WARNING, text
            )
        if link.connection is not None and link.connection.is_damaged:
            self.damaged_frames += 1
        if was_up:
            self._owner.peer_lost(link.broker_id)
        if link.connection is not None and link.connection.refusal is not None:
            self._owner.peer_refused(link.broker_id, str(link.address), link.connection.refusal)

    def answered(self, link: _Link, token: int, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        self._owner.peer_answered(link.broker_id, token, response, raw)

    def receiving(self, link: _Link, size_bytes: int) -> None:
        self._owner.peer_receiving(link.broker_id, size_bytes)

    def new_connection(self, link: _Link) -> PeerConnection:
        """Return a connection whose socket is still to be connected."""
        return PeerConnection(link.broker_id, self.hello, link, self._elapsed_us, self.guarding)

    def elapsed_us(self) -> int:
        return self._elapsed_us()

    def pause_s(self, failures: int) -> float:
        """Return the backoff in seconds after `failures` consecutive failures."""
        if not failures:
            return 0.0
        longest_ms = min(self._timing.reconnect_ms_min * (1 << min(failures - 1, 16)), self._timing.reconnect_ms_max)
        return longest_ms * (0.5 + 0.5 * self._random()) / 1_000

    @property
    def connect_timeout_s(self) -> float:
        """Time-out of connecting a socket."""
        return self._timing.connect_timeout_ms / 1_000


class _Link:
    """The reconnecting connection to one peer, at one of its possible addresses."""

    def __init__(self, owner: PeerConnections, broker_id: BrokerId, places: tuple[Address, ...]) -> None:
        self.broker_id = broker_id
        self.address = places[0]
        self._places = places
        self.connection: PeerConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.came = asyncio.Event()  # set when the peer has connected to this broker since our last attempt
        self._owner = owner
        self.failure = ""  # why there is no connection; empty while it is up, and before the first attempt ended
        self._up_us: int | None = None  # since when it is up
        self._was_up = self.was_steady = False
        self.is_dropped = False

    async def run(self) -> None:
        """Keep a connection until dropped."""
        failures = 0
        while not self.is_dropped:
            self._was_up = self.was_steady = False
            self.came.clear()
            await self._connect_and_serve()
            failures = 0 if self.was_steady else failures + 1
            if not self._was_up:
                self.address = self._places[(self._places.index(self.address) + 1) % len(self._places)]
            if not self.is_dropped:
                await self._pause(self._owner.pause_s(failures))

    async def _pause(self, pause_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self.came.wait()

    async def _connect_and_serve(self) -> None:
        loop = asyncio.get_running_loop()
        connection = self.connection = self._owner.new_connection(self)
        timeout_s = self._owner.connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                options = self._owner.dialling(self.address.host)
                await loop.create_connection(lambda: connection, self.address.host, self.address.port, **options)
            await connection.wait_gone()
        except TimeoutError:
            connection.end(f"no connection within {timeout_s:g} s")
        except OperationalError as error:
            connection.end(str(error))
        except OSError as error:
            connection.end(f"no connection: {dialling_mistake(error)}")
        except ValueError as error:  # the resolver rejects the host name
            connection.end(f"no connection: {error}")
        finally:
            connection.end("given up")
            self.connection = None

    def may_stay(self, places: tuple[Address, ...]) -> bool:
        """Take the peer's new addresses; return False if the current address is not among them."""
        if self.address not in places:
            return False
        self._places = places
        return True

    def drop(self) -> None:
        """End the task: the broker is not a peer any more, or has moved."""
        self.is_dropped = True
        assert self.task is not None
        is_waiting = self.connection is None or self.connection.state is PeerState.CONNECTING
        if self.connection is not None:
            self.connection.end("it is not a peer any more, or has moved")
        if is_waiting:
            self.task.cancel()

    # PeerCalls

    def up(self, cluster_id: str) -> None:
        self._up_us = self._owner.elapsed_us()
        self.failure = ""
        self._owner.up(self, cluster_id)

    def answered(self, token: int, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        self._owner.answered(self, token, response, raw)

    def receiving(self, size_bytes: int) -> None:
        self._owner.receiving(self, size_bytes)

    def ended(self) -> None:
        """The connection has ended."""
        assert self.connection is not None
        self.failure = self.connection.end_reason
        up_us, self._up_us = self._up_us, None
        self._was_up = up_us is not None
        if up_us is not None:
            self.was_steady = self._owner.elapsed_us() - up_us >= limits.PEER_STEADY_MS * 1_000
        self._owner.ended(self, self.connection.end_reason, was_up=up_us is not None)


class _JoinRefusedError(OperationalError):
    """The broker there belongs to another cluster, or reports that another broker uses our id."""

    def __init__(self, reason: str, refusal: RemoteError) -> None:
        super().__init__(reason)
        self.refusal = refusal


class _JoinAttempt:
    """One connection with one join request."""

    def __init__(
        self,
        request: JoinRequest,
        hello: PeerHelloRequest,
        elapsed_us: Callable[[], int],
        guarding: BrokerAuthenticator | None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.said: asyncio.Future[JoinResponse] = self._loop.create_future()
        self.connection = PeerConnection(None, hello, self, elapsed_us, guarding)
        self._request = request

    # PeerCalls

    def up(self, cluster_id: str) -> None:
        """Send the request once this call has returned."""
        self._loop.call_soon(self.connection.send, PeerRequest(_NOBODY_YET, _JOIN_TOKEN, self._request, b""))

    def answered(self, token: int, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        if self.said.done():
            return
        if isinstance(response, RemoteError):
            self.said.set_exception(OperationalError(f"it does not let us join: {response}"))
        else:
            assert isinstance(response, JoinResponse)
            self.said.set_result(response)

    def receiving(self, size_bytes: int) -> None:
        pass

    def ended(self) -> None:
        if not self.said.done():
            reason, refusal = self.connection.end_reason, self.connection.refusal
            error = OperationalError(reason) if refusal is None else _JoinRefusedError(reason, refusal)
            self.said.set_exception(error)
