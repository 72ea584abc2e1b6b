"""The state of a cluster: what each of its brokers answers, asked at the same time.

Rules: every broker is asked for its status, at its advertised address, for ANSWER_S at most; of one that does not
answer the state has the reason. The streams come from the broker that knows most: the metadata leader if it answers,
else one that knows a metadata leader, else the one that knew one last. So the state is the same whichever broker is
named, as long as it, or another one that it knows, can be reached. Nothing is judged here: see `verdict`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

import msgspec

from penstock import aio
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.client.errors import NotABroker, NotAuthorized, TimedOut, Unauthenticated, Unavailable
from penstock.client.link.addresses import DEFAULT_SERVER, SERVER_VARIABLE, parse_servers, parse_tls
from penstock.messages import StatusResponse, StreamInfo

ANSWER_S = 2.0
"""Longest wait for the status of one broker, once another one has answered."""

NO_ANSWER_IN_TIME = "no answer in time"

_ROUNDS = 4  # an answer may name brokers that were not known before
_COUNTERS = {"messages_in": "messages_in", "bytes_in": "bytes_in", "fetched_bytes": "bytes_out"}


class BrokerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one broker. `status` is None if it did not; then `failure` has the reason."""

    broker_id: int | None = None  # None: the address was given by the caller, and no broker answered there
    address: str = ""  # HOST:PORT
    status: StatusResponse | None = None
    failure: str = ""


class GroupLag(msgspec.Struct, frozen=True, kw_only=True):
    """Number of offsets that a consumer group has still to read of a stream."""

    group: str
    stream: str
    lag: int | None  # None: a leader did not answer


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Messages and bytes that a broker stores and sends, per second, between two states."""

    messages_in: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0  # to clients


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """All that was answered, by broker id; those without one last."""

    answers: tuple[BrokerAnswer, ...] = ()
    home: StatusResponse | None = None  # of the broker that was asked first
    streams: tuple[StreamInfo, ...] = ()
    streams_failure: str = ""  # why the streams are not known
    lags: tuple[GroupLag, ...] = ()  # the largest first
    lags_failure: str = ""  # why the lags are not known

    @property
    def statuses(self) -> list[StatusResponse]:
        """The statuses that were answered."""
        return [one.status for one in self.answers if one.status is not None]

    @property
    def best(self) -> StatusResponse | None:
        """The status of the broker that knows most; None if none answered."""
        return max(self.statuses, key=_knowledge, default=None)

    def rates_since(self, before: ClusterState) -> dict[int, Rates]:
        """Return the rates of each broker since an earlier state; without those that restarted, or did not answer."""
        earlier = {one.broker_id: one for one in before.statuses}
        found: dict[int, Rates] = {}
        for status in self.statuses:
            old = earlier.get(status.broker_id)
            if old is None or old.started_us != status.started_us or status.uptime_ms <= old.uptime_ms:
                continue
            seconds = (status.uptime_ms - old.uptime_ms) / 1_000
            each = {
                field: max(0, status.counters.get(name, 0) - old.counters.get(name, 0)) / seconds
                for name, field in _COUNTERS.items()
            }
            found[int(status.broker_id)] = Rates(**each)
        return found


def _knowledge(status: StatusResponse) -> tuple[bool, bool, int, int]:
    leader = status.metadata_leader
    heard_ms = status.metadata_heard_ms
    return leader == status.broker_id, leader is not None, -(2**62 if heard_ms is None else heard_ms), status.streams


async def cluster_state(
    server: str | Sequence[str] | None = None, *, timeout: float = 10.0, with_lags: bool = False
) -> ClusterState:
    """Ask all brokers of the cluster of `server` (as for `penstock.connect`). `with_lags`: also for the groups' lag.

    Brokers that do not answer are part of the state. Unauthenticated, NotAuthorized: `status` needs the right `monitor`
    or `admin`. Unavailable: another program listens there. RemoteError: TLS is required.
    """
    given = parse_servers(os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER if server is None else server)
    async with AsyncExitStack() as stack:
        client, failures = await _connected(given, timeout, stack)
        if client is None:
            return ClusterState(answers=_in_order(failures))
        answers = await _asked(client, [parse_tls(one)[0] for one in given], failures, timeout)
        home = next((one.status for one in answers if one.address == client.server), None)
        state = ClusterState(answers=_in_order(answers), home=home)
        if state.best is None or not state.best.streams:
            return state
        at = next(one.address for one in state.answers if one.status is state.best)
        return await _with_streams(client, state, at, timeout, with_lags=with_lags)


async def _connected(
    given: Sequence[str], timeout: float, stack: AsyncExitStack
) -> tuple[aio.Client | None, list[BrokerAnswer]]:
    """Connect to each given address; return the first client, and the failures of the others."""
    dials = {
        asyncio.ensure_future(aio.connect(one, name="penstock-status", timeout=timeout).open()): one for one in given
    }
    waiting, client = set(dials), None
    while waiting and client is None:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        client = next((one.result() for one in done if one.exception() is None), None)
    if waiting:
        _, late = await asyncio.wait(waiting, timeout=ANSWER_S)
        for one in late:
            one.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    for dial in dials:
        if not dial.cancelled() and dial.exception() is None:
            stack.push_async_callback(dial.result().close)
    failures = []
    for dial, address in dials.items():
        plain = parse_tls(address)[0]
        if dial.cancelled():
            failures.append(BrokerAnswer(address=plain, failure=NO_ANSWER_IN_TIME))
        elif (error := dial.exception()) is None:
            continue
        elif isinstance(error, Unauthenticated | NotAuthorized) or not isinstance(error, Unavailable | RemoteError):
            raise error  # also what is wrong here, such as a file with credentials that others may read
        elif client is None and (isinstance(error, NotABroker) or _wants_tls(error)):
            raise error  # the address is wrong, or lacks tls://
        else:
            failures.append(BrokerAnswer(address=plain, failure=short_reason(error, plain)))
    return client, failures


def _wants_tls(error: BaseException) -> bool:
    return isinstance(error, RemoteError) and error.code == ErrorCode.TLS_REQUIRED


async def _asked(
    client: aio.Client, given: Iterable[str], failures: Iterable[BrokerAnswer], timeout: float
) -> list[BrokerAnswer]:
    """Return the answers at the given addresses, and of all brokers that those who answer know."""
    try:
        first = await client.status(timeout=timeout)
    except (NotAuthorized, Unauthenticated):
        raise
    except (RemoteError, OperationalError) as error:  # it has ended, or hangs, since it was connected
        return [*failures, BrokerAnswer(address=client.server, failure=short_reason(error, client.server))]
    wait_s = min(timeout, ANSWER_S)
    found = {client.server: BrokerAnswer(broker_id=first.broker_id, address=client.server, status=first)}
    failed = {one.address: one for one in failures}
    for number in range(_ROUNDS):
        known = {one.status.broker_id for one in found.values() if one.status is not None}
        wanted: dict[str, int | None] = {one: None for one in given if one not in failed}
        # The given addresses first: the advertised ones of the same brokers may not be known here, as behind a NAT.
        is_given_first = number == 0 and any(one not in found for one in wanted)
        for status in [one.status for one in found.values() if one.status is not None and not is_given_first]:
            wanted |= {one.address: one.broker_id for one in status.peer_failures}
            wanted |= {one.address: one.broker_id for one in status.brokers}
        new = [one for one, broker_id in wanted.items() if one not in found and broker_id not in known]
        if not new and not is_given_first:
            break
        found |= {one: msgspec.structs.replace(failed[one], broker_id=wanted[one]) for one in new if one in failed}
        statuses = await asyncio.gather(
            *(_status(client, one, wanted[one], wait_s) for one in new if one not in failed)
        )
        found |= {one.address: one for one in statuses}
    return list({**failed, **found}.values())


async def _status(client: aio.Client, address: str, broker_id: int | None, wait_s: float) -> BrokerAnswer:
    try:
        status = await client.status(server=address, timeout=wait_s)
    except (RemoteError, OperationalError) as error:
        return BrokerAnswer(broker_id=broker_id, address=address, failure=short_reason(error, address))
    if broker_id is not None and status.broker_id != broker_id:
        failure = f"broker {status.broker_id} answers there"
        return BrokerAnswer(broker_id=broker_id, address=address, failure=failure)
    return BrokerAnswer(broker_id=status.broker_id, address=address, status=status)


async def _with_streams(
    client: aio.Client, state: ClusterState, at: str, timeout: float, *, with_lags: bool
) -> ClusterState:
    try:
        infos = await client.streams(server=at, timeout=timeout)
    except (RemoteError, OperationalError) as error:
        return msgspec.structs.replace(state, streams_failure=short_reason(error, at))
    state = msgspec.structs.replace(state, streams=tuple(infos))
    # Without a metadata leader no coordinator answers.
    if not with_lags or state.best is None or state.best.metadata_leader is None:
        return state
    try:
        async with asyncio.timeout(min(timeout, 2 * ANSWER_S)):
            groups = [one for one in await client.groups.all(lag=True, timeout=timeout) if one.stream is not None]
    except (RemoteError, OperationalError, TimeoutError) as error:
        return msgspec.structs.replace(state, lags_failure=short_reason(error, at))
    lags = (GroupLag(group=one.group, stream=one.stream or "", lag=one.lag) for one in groups)
    return msgspec.structs.replace(
        state, lags=tuple(sorted(lags, key=lambda one: (-(one.lag or 0), one.group, one.stream)))
    )


def short_reason(error: BaseException, address: str) -> str:
    """Return the reason without the address and the advice, which stand beside it."""
    if (isinstance(error, RemoteError) and error.code == ErrorCode.TIMED_OUT) or isinstance(
        error, TimedOut | TimeoutError
    ):
        return NO_ANSWER_IN_TIME
    text = error.message if isinstance(error, RemoteError) else str(error)
    return text.partition(";")[0].removeprefix(f"no broker answers at {address}: ")


def _in_order(answers: Iterable[BrokerAnswer]) -> tuple[BrokerAnswer, ...]:
    """Return one answer for each broker, by id: of several the one with a status."""
    known: dict[object, BrokerAnswer] = {}
    for one in answers:
        key = one.address if one.broker_id is None else one.broker_id
        if key not in known or known[key].status is None:
            known[key] = one
    return tuple(sorted(known.values(), key=lambda one: (one.broker_id is None, one.broker_id or 0, one.address)))
