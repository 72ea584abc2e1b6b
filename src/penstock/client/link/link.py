"""A long-lived link to a cluster: routes each request to a broker that can answer it, until the caller's time-out.

Rules: `Attempts` decides the next action, `ClusterView` holds the known state, and this module executes. Requests about
a partition go to its leader, others to the broker at `server`, which is replaced if it stops answering. Old leader
information is refreshed in the background; concurrent callers share one refresh. If a login is no longer valid, the
link logs in again, once per request and broker. A broker without a cluster id in its hello has not joined a cluster; it
may join any, so its connection serves one request, and the next one exchanges hellos again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, TypeVar, cast

import msgspec

from penstock.access.credentials import Credentials
from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.ids import BrokerId, PartitionId, PartitionKey, StreamId
from penstock.client.checks import seconds_of
from penstock.client.errors import ClientClosed, TimedOut, Unauthenticated, Unavailable
from penstock.client.link.attempts import Ask, Attempts, GiveUp, OutcomeDoubt, Pause, Refresh
from penstock.client.link.cluster import ClusterView
from penstock.client.link.connection import (
    Connection,
    ConnectionLost,
    Dialling,
    NotProven,
    Raw,
    open_connection,
    uninitialised,
)
from penstock.client.link.connections import Connections
from penstock.client.link.credentials import Show
from penstock.client.link.read_from import LEADER, ReadFrom
from penstock.client.link.tls import plain
from penstock.messages import (
    API_OF_REQUEST,
    AlterStreamResponse,
    AppendResponse,
    CreateStreamRequest,
    CreateStreamResponse,
    FetchResponse,
    FindStreamsResponse,
    GetResponse,
    HelloResponse,
    ListOffsetsResponse,
    MetadataRequest,
    MetadataResponse,
    OffsetsStreamResponse,
    PartitionInfo,
    PublishStagedResponse,
    QuotaKind,
    Request,
    Response,
    SchemasStreamResponse,
    StagedStreamRequest,
    StagedStreamResponse,
    StreamInfo,
    Target,
)
from penstock.wire.session import Session

_ATTEMPT_S_MAX = 10.0  # for one connection and its hello; a caller with more time tries again
_CLUSTER_ATTEMPT_S_MAX = 3.0  # the same if there are other brokers to try
_REFRESH_S_MAX = 3.0
_REFRESH_AGAIN_S = 1.0  # shortest interval between refreshes in the background
_CONNECT_AGAIN_S = 0.2  # for a broker that does not know the users yet
_MEET_AGAIN_S = 10.0  # shortest interval between attempts to reach unmet brokers
_NO_CLUSTER = "the broker at {} has not joined its cluster yet: try again once most of its voters are up"

CREATE_GRACE_S = 1.0
"""A client waits this much longer than the broker's time-out, so that the broker can say what it was waiting for."""

R = TypeVar("R", bound=Response)
_Counted = AppendResponse | FetchResponse | GetResponse
Answer = tuple[Response, bytes | memoryview]
_Told = tuple[str, Exception | None]  # (address, None) after a successful refresh, else (address, error)


class Link:
    """Routes the requests of one client. `await link.connect(…)` first."""

    def __init__(
        self,
        servers: Sequence[str],
        name: str,
        version: str,
        *,
        rng: random.Random | None = None,
        rack: str | None = None,
        read_from: ReadFrom = LEADER,
        show: Show = lambda: None,
        dialling: Dialling = plain,
    ) -> None:
        """`show` returns the credentials for a connection."""
        self._show = show
        self._good: Credentials | None = None  # the last credentials accepted
        self.rack = rack  # the client's rack, for `nearest`
        self.read_from = read_from  # the default of readers
        self._rng = rng or random.Random()  # noqa: S311 (spreads load and waiting times, keeps no secret)
        self.view = ClusterView(servers, self._rng.random)
        self._dialling = dialling  # connection options, the same for all brokers
        self._name = name
        self._version = version
        self._connections = Connections(self._open, lambda: self.view.is_cluster)
        self._distrusted: dict[str, tuple[float, str]] = {}  # address → (until, reason) after a failed login
        self._home = servers[0]
        self._hellos: dict[BrokerId, HelloResponse] = {}  # the latest last
        self._hello: HelloResponse | None = None
        self._refreshing: dict[tuple[tuple[str, ...], frozenset[str]], asyncio.Task[_Told]] = {}
        self._refresh_due_s = self._meeting_due_s = float("-inf")
        self._rests: dict[tuple[str, QuotaKind | None], float] = {}  # (address, kind) → until when it is throttled
        self._closed = False

    @property
    def server(self) -> str:
        """HOST:PORT of the broker for requests that any broker can answer."""
        return self._home

    @property
    def is_closed(self) -> bool:
        """True once `close` was called; every call fails from then on."""
        return self._closed

    @property
    def hello(self) -> HelloResponse:
        """The last hello of the broker at `server`."""
        assert self._hello is not None, "connect first"
        return self._hello

    @property
    def nats_urls(self) -> tuple[str, ...]:
        """NATS servers to publish to, from the hellos of all brokers met; those of the current broker first."""
        found = [self.hello, *reversed(self._hellos.values())]
        return tuple(dict.fromkeys(url for hello in found for url in hello.nats_urls))

    def server_of(self, stream_id: StreamId, partition: PartitionId) -> str:
        """Return HOST:PORT of a partition's leader, as far as known, else `server`."""
        return self.view.leader_address(PartitionKey(stream_id, partition)) or self._home

    async def connect(self, timeout_s: float) -> None:
        """Make the first connection: one attempt at each server, so that wrong addresses are reported at once.

        A broker that does not know the users yet is retried until the time-out.
        """
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + seconds_of(timeout_s)
        while True:
            failures = await self._try_each(deadline_s)
            if not failures:
                return
            is_early = any(isinstance(one, RemoteError) and one.code == ErrorCode.NOT_YET for one in failures.values())
            if not is_early or clock.time() + _CONNECT_AGAIN_S >= deadline_s:
                break
            await asyncio.sleep(_CONNECT_AGAIN_S)
        first = next(iter(failures.values()))
        if len(failures) == 1 or all(isinstance(error, Unauthenticated) for error in failures.values()):
            raise first
        said = "; ".join(f"{address}: {str(error).partition(';')[0]}" for address, error in failures.items())
        raise Unavailable(f"no broker of the cluster can be reached ({said})")

    async def _try_each(self, deadline_s: float) -> dict[str, Exception]:
        """Return the errors by address; empty: a connection was made."""
        clock = asyncio.get_running_loop()
        failures: dict[str, Exception] = {}
        servers = self._rng.sample(self.view.servers, len(self.view.servers))
        for tried, address in enumerate(servers):
            share_s = (deadline_s - clock.time()) / (len(servers) - tried)
            try:
                await self._connections.at(address, clock.time() + share_s)
            except (RemoteError, Unavailable) as error:
                failures[address] = error
                self.view.failed(address, clock.time())
            else:
                return {}
        return failures

    async def refresh(self, timeout_s: float) -> None:
        """Ensure a connection and contact all brokers, so that `nats_urls` is up to date. Unavailable, TimedOut."""
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + seconds_of(timeout_s)
        if not self._connections.is_open(self._home):
            await self.call(MetadataRequest(names=()), MetadataResponse, timeout_s=timeout_s)
        if clock.time() >= self._meeting_due_s:
            self._meeting_due_s = clock.time() + _MEET_AGAIN_S
            unmet = [address for address in self.view.candidates() if not self.view.is_met(address)]
            meetings = (self._connections.at(address, deadline_s) for address in unmet)
            await asyncio.gather(*meetings, return_exceptions=True)  # unreachable brokers are skipped

    def learn(self, stream: StreamInfo) -> None:
        """Learn the leaders from a `StreamInfo` of the caller, which may be old."""
        self.view.learn_stream(stream, None, asyncio.get_running_loop().time())

    async def call(
        self,
        request: Request,
        response_type: type[R],
        *,
        timeout_s: float,
        raw: Raw = b"",
        doubt: OutcomeDoubt | None = None,
    ) -> tuple[R, bytes | memoryview]:
        """Return the answer and its raw part; set `doubt` if a broker may have executed the request without an answer.

        RemoteError: refused, or TimedOut. Unavailable: no broker could be reached in time. OutcomeUnknown: the
        connection broke after an append was sent.
        """
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + seconds_of(timeout_s)
        spec = API_OF_REQUEST[type(request)]
        assert spec.response is response_type, (spec.response, response_type)
        key = _partition_of(request)
        what, chance = spec.api.name.lower(), self._rng.random
        attempts = Attempts(
            self.view,
            key,
            what=what,
            repeatable=spec.repeatable,
            deadline_s=deadline_s,
            chance=chance,
            doubt=doubt,
        )
        if not isinstance(request, MetadataRequest):
            self.refresh_if_old(key, clock.time())
        while True:
            self._check_open()
            match attempts.next(clock.time(), self._home):
                case Ask(address):
                    answer = await self._ask(address, request, raw, deadline_s, attempts)
                    if answer is not None:
                        return cast("tuple[R, bytes | memoryview]", answer)
                case Refresh(avoid):
                    await self._refresh(key, avoid, deadline_s, attempts)
                case Pause(seconds):
                    await asyncio.sleep(seconds)
                case GiveUp(error):
                    raise error

    def address_of_leader(self, part: PartitionInfo) -> str | None:
        """Return the address of the partition's leader; None: no leader, or its address is unknown."""
        if part.leader_id is None:
            return None
        return self.view.address_of(part.leader_id) or part.leader or None

    async def call_at(
        self, address: str, request: Request, response_type: type[R], *, timeout_s: float
    ) -> tuple[R, bytes | memoryview]:
        """Ask exactly this broker, once. RemoteError, Unavailable, TimedOut."""
        deadline_s = asyncio.get_running_loop().time() + seconds_of(timeout_s)
        assert API_OF_REQUEST[type(request)].response is response_type, response_type
        self._check_open()
        connection = await self._connections.at(address, deadline_s)
        return cast("tuple[R, bytes | memoryview]", await self._answer(connection, request, b"", deadline_s))

    async def ask_at(self, address: str, request: MetadataRequest, timeout_s: float) -> MetadataResponse | None:
        """Return the metadata of exactly this broker; None if it does not answer."""
        deadline_s = asyncio.get_running_loop().time() + seconds_of(timeout_s)
        try:
            connection = await self._connections.at(address, deadline_s)
            answer, _ = await self._answer(connection, request, b"", deadline_s)
        except (RemoteError, OperationalError):
            self._check_open()
            return None
        self._learn(request, answer, address)
        return cast("MetadataResponse", answer)

    async def cluster_id(self, timeout_s: float) -> str:
        """Return the cluster's id; wait until a broker knows it. Unavailable: none does; TimedOut, RemoteError."""
        clock = asyncio.get_running_loop()
        deadline_s = clock.time() + seconds_of(timeout_s)
        while not self.view.cluster_id:
            await self.call(MetadataRequest(names=()), MetadataResponse, timeout_s=deadline_s - clock.time())
            if not self.view.cluster_id:
                if clock.time() + _CONNECT_AGAIN_S >= deadline_s:
                    raise Unavailable(_NO_CLUSTER.format(self._home))
                await asyncio.sleep(_CONNECT_AGAIN_S)
        return self.view.cluster_id

    async def close(self) -> None:
        """Close the connections; calls in flight fail."""
        self._closed = True
        tasks = list(self._refreshing.values())
        for task in tasks:
            task.cancel()
        await self._connections.close()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(
        self, address: str, request: Request, raw: Raw, deadline_s: float, attempts: Attempts
    ) -> Answer | None:
        clock = asyncio.get_running_loop()
        try:
            connection = await self._connections.at(address, deadline_s)
        except (RemoteError, Unavailable) as error:
            self._check_open()
            attempts.unreachable(address, error, clock.time())
            return None
        try:
            await self._rest(address, request, deadline_s)
            left = _with_time_left(request, deadline_s - clock.time())
            answer = await self._answer(connection, left, raw, deadline_s)
        except ConnectionLost as error:
            attempts.lost(address, error, clock.time(), sent=error.sent)
            self._check_open()
        except RemoteError as error:
            if error.code == ErrorCode.THROTTLED and self._throttled(address, request, error) < deadline_s:
                return None  # nothing was executed: retry after the throttle time
            attempts.refused(address, error, clock.time())
        else:
            self.view.works(address)
            self._learn(request, answer[0], address)
            if isinstance(answer[0], _Counted) and answer[0].throttle_ms:
                self._throttled(address, request, answer[0])
            return answer
        return None

    async def _answer(self, connection: Connection, request: Request, raw: Raw, deadline_s: float) -> Answer:
        """Call `Connection.call`; if the login is no longer valid, retry once on a new connection.

        The retry is safe: a request so refused was not executed. It logs in with the current credentials.
        """
        try:
            return await connection.call(request, raw, deadline_s)
        except Unauthenticated as error:
            self._connections.retire(connection, error)
        finally:
            if not connection.names_cluster:
                self._connections.retire(connection, RemoteError(ErrorCode.NOT_YET, _NO_CLUSTER.format(self._home)))
        clock = asyncio.get_running_loop()
        while True:
            try:
                anew = await self._connections.at(connection.server, deadline_s)
            except (Unavailable, TimedOut) as error:
                raise ConnectionLost(str(error), sent=False) from None
            except RemoteError as error:
                # The retired connection counts towards the user's connection limit until its calls are answered.
                if error.code != ErrorCode.OVERLOADED or clock.time() + _CONNECT_AGAIN_S >= deadline_s:
                    raise
                await asyncio.sleep(_CONNECT_AGAIN_S)
            else:
                return await anew.call(request, raw, deadline_s)

    def _throttled(self, address: str, request: Request, told: _Counted | RemoteError) -> float:
        """Record the throttle time that the broker asks for, for requests of that kind; return when it ends."""
        wait_ms = told.details.get("throttle_ms", 0) if isinstance(told, RemoteError) else told.throttle_ms
        wait_s = min(wait_ms, limits.THROTTLE_MS_MAX) / 1_000 if isinstance(wait_ms, int) and wait_ms > 0 else 0.001
        until_s = asyncio.get_running_loop().time() + wait_s
        self._rests[address, API_OF_REQUEST[type(request)].quota] = until_s
        return until_s

    async def _rest(self, address: str, request: Request, deadline_s: float) -> None:
        """Wait while the broker throttles this user's requests, up to the deadline."""
        if not self._rests:
            return
        if (quota := API_OF_REQUEST[type(request)].quota) is None:
            return
        now_s = asyncio.get_running_loop().time()
        until_s = self._rests.get((address, quota), 0.0)
        if until_s > now_s:
            await asyncio.sleep(min(until_s, deadline_s) - now_s)
            if until_s >= deadline_s:
                text = f"this user exceeds a rate limit of the broker at {address}, which throttles it"
                raise TimedOut(f"{text}; the time-out passed before the throttle time was over")
        else:
            self._rests.pop((address, quota), None)

    async def _open(self, address: str, deadline_s: float) -> Connection:
        self._check_open()
        attempt_s = _CLUSTER_ATTEMPT_S_MAX if self.view.is_cluster else _ATTEMPT_S_MAX
        now_s = asyncio.get_running_loop().time()
        attempt_end_s = min(deadline_s, now_s + attempt_s)
        if (distrusted := self._distrusted.get(address)) is not None:
            until_s, text = distrusted
            if now_s < until_s:
                raise NotProven(text)
            del self._distrusted[address]
        try:
            connection, hello = await self._greet(address, attempt_end_s)
        except NotProven as error:
            if len(self._distrusted) >= limits.CLIENT_BROKERS_MAX:
                del self._distrusted[next(iter(self._distrusted))]
            self._distrusted[address] = (asyncio.get_running_loop().time() + limits.CLIENT_LOGIN_BACKOFF_S, str(error))
            raise
        try:
            self._check_open()
            self.view.greeted(address, hello)
            connection.names_cluster = bool(hello.cluster_id)
        except BaseException:
            connection.close()
            raise
        self._hellos.pop(hello.broker_id, None)
        self._hellos[hello.broker_id] = hello
        if len(self._hellos) > limits.CLIENT_BROKERS_MAX:
            del self._hellos[next(iter(self._hellos))]
        if address == self._home or not self._connections.is_open(self._home):
            self._home, self._hello = address, hello
        return connection

    async def _greet(self, address: str, end_s: float) -> tuple[Connection, HelloResponse]:
        """Call `open_connection`; retry while a credentials file is being rotated.

        If credentials other than the last accepted ones are refused, their file may be half written, or written before
        the broker knew them. Then the last accepted ones of the same user are tried, then the file again.
        """
        clock = asyncio.get_running_loop()
        shown: Credentials | None = None
        refused: Credentials | None = None  # those of the file
        before: Credentials | None = None  # the last accepted ones, to be tried next

        def show() -> Credentials | None:
            nonlocal shown
            shown = self._show()
            if before is not None and shown is refused:
                shown = before
            return shown

        while True:
            session = Session(self._name, self._version, allocate=uninitialised)
            try:
                connection, hello = await open_connection(address, session, end_s, show, self._dialling)
            except Unauthenticated:
                is_known = shown is None or self._good is None
                if is_known or shown is refused or clock.time() + _CONNECT_AGAIN_S >= end_s:
                    raise
                if shown is self._good:
                    if before is None:
                        raise
                    before = None  # the file's credentials may be valid by now
                    continue
                refused, before = shown, self._good if _is_of_one_user(shown, self._good) else None
                await asyncio.sleep(_CONNECT_AGAIN_S)
            else:
                self._good = shown or self._good
                return connection, hello

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed

    # Leaders

    def refresh_if_old(self, key: PartitionKey | None, now_s: float, *, is_wrong: bool = False) -> None:
        """Refresh leaders and brokers in the background if that information is old or `is_wrong`."""
        if now_s >= self._refresh_due_s and (is_wrong or self.view.is_old(key, now_s)):
            self._refresh_due_s = now_s + _REFRESH_AGAIN_S
            self._refresh_soon(key)

    async def _refresh(
        self, key: PartitionKey | None, avoid: frozenset[str], deadline_s: float, attempts: Attempts
    ) -> None:
        task = self._refresh_soon(key, avoid)
        await asyncio.wait({task}, timeout=deadline_s - asyncio.get_running_loop().time())
        if task.done() and not task.cancelled():
            address, error = task.result()
            if error is None:
                attempts.refreshed(address)
            else:
                attempts.not_told(address, error)

    def _refresh_soon(self, key: PartitionKey | None, avoid: frozenset[str] = frozenset()) -> asyncio.Task[_Told]:
        name = None if key is None else self.view.name_of(key.stream_id)
        names = () if name is None else (name,)
        task = self._refreshing.get((names, avoid))
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask_who_leads(names, avoid))
            self._refreshing[names, avoid] = task
            task.add_done_callback(lambda _: self._refreshing.pop((names, avoid), None))
        return task

    async def _ask_who_leads(self, names: tuple[str, ...], avoid: frozenset[str]) -> _Told:
        clock = asyncio.get_running_loop()
        address = self.view.any_broker(clock.time(), avoid=avoid)
        deadline_s = clock.time() + _REFRESH_S_MAX
        request = MetadataRequest(names=names)
        try:
            connection = await self._connections.at(address, deadline_s)
            answer, _ = await self._answer(connection, request, b"", deadline_s)
        except RemoteError as error:
            self.view.avoid(address, clock.time())
            return address, error
        except OperationalError as error:
            self.view.failed(address, clock.time())
            return address, error
        self.view.works(address)
        self._learn(request, answer, address)
        return address, None

    def _learn(self, request: Request, response: Response, address: str) -> None:
        now_s = asyncio.get_running_loop().time()
        match response:
            case FetchResponse() | GetResponse() | ListOffsetsResponse() | AppendResponse() | PublishStagedResponse():
                key = _partition_of(request)
                assert key is not None
                self.view.learn_answer(key, address, response.leader_epoch, now_s)
            case MetadataResponse(streams=streams, brokers=brokers):
                self.view.learn_brokers(brokers, now_s)
                for stream in streams if isinstance(request, MetadataRequest) and request.names is not None else ():
                    self.view.learn_stream(stream, address, now_s)
            case (
                CreateStreamResponse(stream=stream)
                | AlterStreamResponse(stream=stream)
                | OffsetsStreamResponse(stream=stream)
                | SchemasStreamResponse(stream=stream)
                | StagedStreamResponse(stream=stream)
            ):
                self.view.learn_stream(stream, address, now_s)
            case FindStreamsResponse(streams=streams):
                for stream in streams:
                    self.view.learn_stream(stream, address, now_s)


def _is_of_one_user(one: Credentials | None, other: Credentials | None) -> bool:
    """True if both credentials name the same user. An nkey names none."""
    names = {"" if each is None else each.name.partition("/")[0] for each in (one, other)}
    return len(names) == 1 and bool(names.pop())


def _with_time_left(request: Request, left_s: float) -> Request:
    """Limit the request's own time-out to the time left, so that no broker works on after the caller gave up."""
    if not isinstance(request, CreateStreamRequest | StagedStreamRequest):
        return request
    left_ms = max(1, int((left_s - CREATE_GRACE_S) * 1_000))
    return msgspec.structs.replace(request, timeout_ms=min(request.timeout_ms, left_ms))


def _partition_of(request: Any) -> PartitionKey | None:
    """Return the partition whose leader must answer; None: any broker can."""
    asks_leader = API_OF_REQUEST[type(request)].target is Target.LEADER
    return PartitionKey(request.stream_id, request.partition) if asks_leader else None
