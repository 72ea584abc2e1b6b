"""The connections to the other brokers of the cluster: one to each, made again for as long as it is a peer.

Rules: the node says who is a peer and where (`set_address`), and hears who can be asked (`peer_up`) and who cannot any
more (`peer_lost`), in turns. What is to go to one that cannot be asked is dropped. A connection that has lived for a
while is replaced at once when it is lost; after a failure comes a pause, which grows and is spread at random, so that
the brokers of a cluster do not all return at the same moment. It ends at once when that peer calls here: one that was
restarted asks by itself, and what this broker has to tell it (who leads the metadata now) is not to wait. What is wrong
with a peer is logged at intervals that double, from a minute to an hour.

Connections that other brokers make to this one are ordinary ones of the server; answers go back on those.
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
from penstock.broker.complaints import Complaints
from penstock.broker.guarding import Guarding
from penstock.broker.joining import NOBODY_YET, NotLetInError, ask_to_join
from penstock.broker.peer_connection import PeerConnection, PeerState, dialling_mistake
from penstock.messages import JoinResponse, PeerHelloRequest, Response
from penstock.node.step import Join, PeerRequest

_log = logging.getLogger("penstock.peers")


class PeerOwner(Protocol):
    """Who has the connections."""

    def peer_up(self, broker_id: BrokerId, cluster_id: str) -> None:
        """It can be asked as soon as this has returned; what is asked until then is dropped. It is of that cluster."""

    def peer_lost(self, broker_id: BrokerId) -> None:
        """It cannot be asked any more; what is not answered will not be."""

    def peer_refused(self, broker_id: BrokerId, where: str, error: RemoteError) -> None:
        """The broker there (0: not known which) is of another cluster, or says that somebody is us already."""

    def peer_answered(
        self, broker_id: BrokerId, token: int, response: Response | RemoteError, raw: bytes | memoryview
    ) -> None:
        """What came of a request."""

    def peer_receiving(self, broker_id: BrokerId, size_bytes: int) -> None:
        """So much more has come of a large answer, 0 as it begins."""

    def peer_joined(self, response: JoinResponse) -> None:
        """Some broker has said what the cluster is."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient the making of connections is."""

    connect_timeout_ms: int = limits.PEER_CONNECT_TIMEOUT_MS
    answer_timeout_ms: int = limits.PEER_SILENCE_MS_MAX
    reconnect_ms_min: int = limits.PEER_RECONNECT_MS_MIN
    reconnect_ms_max: int = limits.PEER_RECONNECT_MS_MAX


class Peers:
    """All of them. `hello` is what this broker says of itself to each, and may change. Use on one event loop."""

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
        guarding: Guarding | None = None,
    ) -> None:
        """`failed` hears of a mistake in the program that has ended the care for a peer.

        `dialling`: what `create_connection` takes besides, to reach a broker at a host; for TLS.
        """
        self.hello = hello
        self.guarding = guarding
        self.damaged_frames = 0  # on the way to a peer or back; each has cost its connection
        self._owner = owner
        self._elapsed_us = elapsed_us
        self._random = random
        self._failed = failed
        self.dialling = dialling
        self._timing = timing or Timing()
        self._links: dict[BrokerId, _Link] = {}
        self._joining: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._complaints = Complaints(limits.PEER_COMPLAINT_INTERVAL_MS, limits.PEER_COMPLAINT_INTERVAL_MS_MAX)

    def set_address(self, broker_id: BrokerId, address: str) -> None:
        """Keep a connection to that broker, at HOST:PORT or one of several, with commas between; empty: no more."""
        assert broker_id != self.hello.broker_id
        places: tuple[Address, ...] = ()
        for one in filter(None, address.split(",")):
            try:
                places += (parse_address(one),)
            except ValueError as error:  # it may be right elsewhere
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
        """That broker has connected to this one: it can be reached, most likely."""
        if (link := self._links.get(broker_id)) is not None:
            link.came.set()

    def join(self, join: Join) -> None:
        """Ask the brokers at these addresses, again and again, until one of them has answered."""
        if self._joining is not None:
            self._joining.cancel()
        self._joining = self._begin(self._join(join), "joining")

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def send(self, request: PeerRequest) -> None:
        """Ask a peer; dropped unless it is up."""
        if (link := self._links.get(request.to)) is not None and link.connection is not None:
            link.connection.send(request)

    def sweep(self) -> None:
        """About once a second: find who is silent."""
        for link in list(self._links.values()):
            if link.connection is not None:
                link.connection.sweep()

    def is_proven(self, broker_id: BrokerId) -> bool:
        """Whether the broker at the other end of the connection to it has proved to be one of this cluster's."""
        link = self._links.get(broker_id)
        return link is not None and link.connection is not None and link.connection.is_proven

    def cut(self, broker_id: BrokerId, reason: str) -> None:
        """End the connection to that peer; it is made again."""
        if (link := self._links.get(broker_id)) is not None and link.connection is not None:
            link.connection.end(reason)

    async def stop(self) -> None:
        """Close all; each peer that was up is lost."""
        for broker_id in list(self._links):
            self.set_address(broker_id, "")
        if self._joining is not None:
            self._joining.cancel()
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    async def _join(self, join: Join) -> None:
        failures = 0
        while True:
            where = join.addresses[failures % len(join.addresses)]
            try:
                self._owner.peer_joined(await ask_to_join(parse_address(where), join.request, self))
                return
            except NotLetInError as error:
                self.complain("joining", f"{where}: {error}")
                self._owner.peer_refused(NOBODY_YET, where, error.refusal)
            except (OperationalError, ValueError) as error:
                self.complain("joining", f"{where}: {error}")
            failures += 1
            await asyncio.sleep(self.pause_s(failures))

    def complain(self, who: str, text: str) -> None:
        """Log what is wrong with a peer."""
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
        """It is who it should be, of that cluster, if it knows of one."""
        text = f"connected to broker {link.broker_id} at {link.address}"
        self._tell(f"up {link.broker_id}", logging.INFO, text)
        self._owner.peer_up(link.broker_id, cluster_id)

    def ended(self, link: _Link, reason: str, *, was_up: bool) -> None:
        """Its connection is gone, or could not be made."""
        if link.was_steady:
            self._complaints.was_well(f"broker {link.broker_id}")
        if not link.is_dropped:
            text = f"broker {link.broker_id}: {link.address}: {reason}"
            # That a broker is away must not hide that somebody else is in its place.
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
        """Pass it on."""
        self._owner.peer_answered(link.broker_id, token, response, raw)

    def receiving(self, link: _Link, size_bytes: int) -> None:
        """Pass it on."""
        self._owner.peer_receiving(link.broker_id, size_bytes)

    def new_connection(self, link: _Link) -> PeerConnection:
        """One whose socket is still to be made."""
        return PeerConnection(link.broker_id, self.hello, link, self._elapsed_us, self.guarding)

    def elapsed_us(self) -> int:
        """The time."""
        return self._elapsed_us()

    def pause_s(self, failures: int) -> float:
        """How long to wait after so many failures in a row."""
        if not failures:
            return 0.0
        longest_ms = min(self._timing.reconnect_ms_min * (1 << min(failures - 1, 16)), self._timing.reconnect_ms_max)
        return longest_ms * (0.5 + 0.5 * self._random()) / 1_000

    @property
    def answer_timeout_s(self) -> float:
        """How long who is asked to let us join may take."""
        return self._timing.answer_timeout_ms / 1_000

    @property
    def connect_timeout_s(self) -> float:
        """How long the making of a socket may take."""
        return self._timing.connect_timeout_ms / 1_000


class _Link:
    """One peer, at one of the addresses where it may be."""

    def __init__(self, owner: Peers, broker_id: BrokerId, places: tuple[Address, ...]) -> None:
        self.broker_id = broker_id
        self.address = places[0]
        self._places = places
        self.connection: PeerConnection | None = None
        self.task: asyncio.Task[None] | None = None
        self.came = asyncio.Event()  # the peer, to this broker, since the last attempt to reach it
        self._owner = owner
        self._up_us: int | None = None  # since when it is up
        self._was_up = self.was_steady = False
        self.is_dropped = False

    async def run(self) -> None:
        """Have a connection until dropped."""
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
        except ValueError as error:  # the system's look-up of names makes nothing of it
            connection.end(f"no connection: {error}")
        finally:
            connection.end("given up")
            self.connection = None

    def may_stay(self, places: tuple[Address, ...]) -> bool:
        """It may be at these places from now on; False if it is being reached at none of them."""
        if self.address not in places:
            return False
        self._places = places
        return True

    def drop(self) -> None:
        """It is a peer no more, or is elsewhere."""
        self.is_dropped = True
        assert self.task is not None
        is_waiting = self.connection is None or self.connection.state is PeerState.CONNECTING
        if self.connection is not None:
            self.connection.end("it is no peer any more, or is elsewhere")
        if is_waiting:
            self.task.cancel()

    # PeerCalls

    def up(self, cluster_id: str) -> None:
        """It is who it should be."""
        self._up_us = self._owner.elapsed_us()
        self._owner.up(self, cluster_id)

    def answered(self, token: int, response: Response | RemoteError, raw: bytes | memoryview) -> None:
        """Pass it on."""
        self._owner.answered(self, token, response, raw)

    def receiving(self, size_bytes: int) -> None:
        """Pass it on."""
        self._owner.receiving(self, size_bytes)

    def ended(self) -> None:
        """The connection is gone."""
        assert self.connection is not None
        up_us, self._up_us = self._up_us, None
        self._was_up = up_us is not None
        if up_us is not None:
            self.was_steady = self._owner.elapsed_us() - up_us >= limits.PEER_STEADY_MS * 1_000
        self._owner.ended(self, self.connection.end_reason, was_up=up_us is not None)
