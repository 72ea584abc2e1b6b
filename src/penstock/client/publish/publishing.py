"""Publish through NATS with acks, like `js.publish`, plus keys, tombstones and acks of several streams.

Rules: a publish ends with its ack, an error or its time-out; after a time-out the outcome is unknown. At most
`PUBLISHES_IN_FLIGHT_MAX` wait for an ack; further publishes wait for a slot. Messages are sent in call order.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.base import limits
from penstock.base.errors import ErrorCode, OperationalError, RemoteError
from penstock.base.nats_logins import shown_url
from penstock.base.subjects import subject_mistake
from penstock.client.checks import seconds_of, whole_number
from penstock.client.errors import ClientClosed, TimedOut, Unavailable
from penstock.client.link.addresses import DEFAULT_PORT
from penstock.client.publish.ack_waiters import (
    AckFuture,
    AllAcks,
    Asked,
    OneAck,
    Outcome,
    Outgoing,
    ReplyWaiter,
    Reroute,
    nobody_listens,
    nobody_stores,
)
from penstock.client.publish.nats_login import nats_login
from penstock.client.publish.unseen import UnseenFailures
from penstock.client.publish_format import Value, header_block, parse_acks, payload
from penstock.client.values import PubAck
from penstock.messages import StreamInfo

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from penstock.client.publish.nats_client import StrictNatsClient

_NO_RESPONDERS = "503"
_OFFERS_NO_TLS = "offers no tls, but"  # text of `NoTlsError`, in lower case
_SAID_NOTHING = "empty response from server when expecting info"  # in lower case
_SUBSCRIPTION_REFUSED = "permissions violation for subscription"
_PUBLISH_REFUSED = re.compile('permissions violation for publish to "(.+)"')  # nats-py lower-cases it
_CANCEL_AGAIN_S = 0.1
_SUBJECTS_KEPT = 256  # of which it is known if they are valid
_TOKEN_DIGITS_MAX = 19
_LOOK_S = 0.01  # between looks for messages that are due: a look passes over all that are in flight
_PING_INTERVAL_S = 5  # a dead server is abandoned after two unanswered PINGs
_LOOK_UP_S = 1.0  # time to ask which streams store a subject without subscribers
_CLOSE_S = 3.0
CLOSE_FLUSH_S = 1.0  # how long closing waits for messages published without an ack

T = TypeVar("T")


LookUp = Callable[[str, float], Awaitable[list[StreamInfo]]]
"""Returns the streams that store a subject; the float is a time-out in seconds."""


class Publisher:
    """One NATS connection, made when the first message is published."""

    def __init__(
        self,
        urls: Sequence[str],
        name: str,
        options: Mapping[str, Any],
        look_up: LookUp | None = None,
        reroute: Reroute | None = None,
        unseen: UnseenFailures | None = None,
    ) -> None:
        """`look_up` returns the streams that store a subject, even those without a subscriber now."""
        self._reroute = reroute
        self._unseen = unseen or UnseenFailures()
        self.urls = tuple(urls)
        self._look_up = look_up
        self._name = name
        self._options = dict(options)
        self._nats: StrictNatsClient | None = None
        self._inbox = ""
        self._connecting = asyncio.Lock()
        self._is_closed = False
        self._last_token = 0
        self._in_flight: dict[int, ReplyWaiter] = {}  # by token
        self._echoes: dict[int, asyncio.Future[None]] = {}  # by token
        self._flushes: list[_Flush] = []
        self._timer: asyncio.TimerHandle | None = None  # one for all that are in flight
        self._look_s = math.inf  # when it looks for those that are due
        self._free_slots = limits.PUBLISHES_IN_FLIGHT_MAX
        self._wait_for_slot: deque[asyncio.Future[None]] = deque()
        self._retries: set[asyncio.Task[None]] = set()
        self._first_failure: BaseException | None = None
        self._failures = 0
        self._last_error = ""
        self._inbox_refusal = ""  # the server's reason why acks cannot arrive
        self._unconfirmed = False  # something was published without an ack since the last flush

    @property
    def is_cut_off(self) -> bool:
        """True if a connection was made and is down now."""
        return self._nats is not None and not self._nats.is_connected

    def future(self) -> AckFuture:
        """Return a new future for `publish`."""
        future = AckFuture(loop=asyncio.get_running_loop())
        future.publisher, future.token = self, 0
        return future

    async def publish(
        self,
        outcome: Outcome,
        subject: str,
        value: Value,
        headers: dict[str, str] | None,
        *,
        timeout_s: float,
        retries: int = 0,
        asked: Asked | None = None,
        notes_failure: bool = False,
    ) -> None:
        """Send one message, and resend it if no ack arrives; `outcome` gets its ack, or why there is none.

        With `notes_failure`, `flush` raises the error if it fails.
        A message that a leader refuses because its key moves, or has moved, is sent again where `asked` leads by then.
        What is raised here is not given to `outcome`.
        """
        if not 0 <= (retries := whole_number("number of retries", retries)) <= limits.PUBLISH_RETRIES_MAX:
            raise ValueError(f"retries is {retries}; it can be 0 to {limits.PUBLISH_RETRIES_MAX}")
        outgoing = _outgoing(subject, value, headers)
        within_s = seconds_of(timeout_s)
        now_s = asyncio.get_running_loop().time()
        deadline_s = now_s + within_s
        if (connection := self._at_once()) is None:
            connection = await self._in_turn(deadline_s)
            now_s = asyncio.get_running_loop().time()  # the first repetition comes so long after the sending
        every_s = within_s / (retries + 1)
        waiter = OneAck(self, outgoing, outcome, now_s, deadline_s, every_s, retries, asked, notes_failure)
        must_pass_on = self._send(connection, waiter, outgoing)
        outcome.token = waiter.token
        if must_pass_on:
            await self._pass_on(connection, waiter, deadline_s)

    async def publish_to_all(
        self, subject: str, value: Value, headers: dict[str, str] | None, expected: frozenset[str], *, timeout_s: float
    ) -> dict[str, PubAck]:
        """Send one message and wait for an ack of every stream in `expected`."""
        outgoing = _outgoing(subject, value, headers)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds_of(timeout_s)
        connection = self._at_once() or await self._in_turn(deadline_s)
        waiter = AllAcks(self, subject, expected, loop.create_future(), deadline_s)
        must_pass_on = self._send(connection, waiter, outgoing)
        try:
            if must_pass_on:
                await connection.pass_on(deadline_s)
            return await waiter.future
        finally:
            self.forget(waiter.token)

    async def publish_without_ack(
        self, subject: str, value: Value, headers: dict[str, str] | None, *, timeout_s: float
    ) -> None:
        """Send one message without asking for an ack."""
        outgoing = _outgoing(subject, value, headers)
        deadline_s = asyncio.get_running_loop().time() + seconds_of(timeout_s)
        connection = await self._connected(deadline_s)
        self._unconfirmed = True
        if _post(connection, outgoing, "") and not await connection.pass_on(deadline_s):
            text = f"NATS has taken no bytes in time: whether the message on {subject!r} will be sent is unknown"
            raise TimedOut(text)

    async def flush(self, timeout_s: float) -> None:
        """Wait until every publish has its ack; raise the first failure since the last flush."""
        try:
            async with asyncio.timeout(seconds_of(timeout_s)):
                if self._in_flight:  # the current ones only: other callers may publish without end
                    await self._all_ended()
                if self._unconfirmed:
                    await self._echo()
        except TimeoutError:
            raise TimedOut(f"{len(self._in_flight)} messages have no ack yet") from None
        failure, self._first_failure = self._first_failure, None
        failures, self._failures = self._failures, 0
        if failure is not None:
            self._unseen.heard()
            if failures > 1:
                failure.add_note(f"{failures} publishes failed; this is the first one")
            raise failure

    async def finish(self) -> None:
        """Wait until every publish so far has its ack, or has failed, at the latest by its own time-out."""
        if self._in_flight:
            await self._all_ended()

    async def close(self) -> None:
        """Close the NATS connection; publishes without an ack fail."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._retries:
            task.cancel()
        for waiter in list(self._in_flight.values()):
            waiter.fail(Unavailable("closed before the ack came: whether the message is stored is unknown"))
        connection = self._nats
        if connection is not None:
            with contextlib.suppress(Exception):
                if self._unconfirmed:
                    await asyncio.wait_for(self._echo(), CLOSE_FLUSH_S)
            self._nats = None
            await give_back(connection)

    async def _all_ended(self) -> None:
        """Wait until all that are in flight now have ended."""
        flush = _Flush(self._last_token, len(self._in_flight), asyncio.get_running_loop().create_future())
        self._flushes.append(flush)
        try:
            await flush.future
        finally:
            self._flushes.remove(flush)

    async def _echo(self) -> None:
        """Wait for a message to ourselves, which shows that all before it have reached the NATS server."""
        # Not nats-py's flush, because its PING overtakes bytes that still wait to be written.
        assert self._nats is not None
        self._last_token = token = self._last_token + 1
        self._echoes[token] = future = asyncio.get_running_loop().create_future()
        self._unconfirmed = False
        try:
            if _post(self._nats, Outgoing(f"{self._inbox}.{token}", b"", None), ""):
                await self._nats.pass_on()
            await future
        except BaseException:
            self._unconfirmed = True
            raise
        finally:
            del self._echoes[token]

    def send_later(self, seconds: float, outgoing: Outgoing, token: int, sent: Callable[[], None]) -> None:
        """Send the message again after a delay, unless its waiter has finished."""
        self.run(self._send_again(seconds, outgoing, token, sent))

    def run(self, what: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background; it is cancelled by `close`."""
        task = asyncio.get_running_loop().create_task(what)
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    async def reroute(self, asked: Asked) -> str:
        """Return the subject of the partition that has the message's key now. OperationalError, RemoteError."""
        return asked.subject if self._reroute is None else await self._reroute(asked)

    def nobody_stores(self, waiter: ReplyWaiter) -> None:
        """Fail the publish: the subject has no subscriber. Ask the brokers for the reason first."""
        self.run(self._fail(waiter))

    async def _fail(self, waiter: ReplyWaiter) -> None:
        known: Sequence[StreamInfo] = ()
        if self._look_up is not None:
            try:
                known = await self._look_up(waiter.subject, _LOOK_UP_S)
            except (OperationalError, RemoteError) as error:
                waiter.fail(nobody_listens(waiter.subject, error))
                return
        waiter.fail(nobody_stores(waiter.subject, known))

    async def _send_again(self, seconds: float, outgoing: Outgoing, token: int, sent: Callable[[], None]) -> None:
        await asyncio.sleep(seconds)
        if token in self._in_flight and self._nats is not None:
            with contextlib.suppress(OperationalError, RemoteError):  # otherwise the time-out reports it
                if _post(self._nats, outgoing, f"{self._inbox}.{token}"):
                    await self._nats.pass_on()
                sent()

    def _at_once(self) -> StrictNatsClient | None:
        """Take a slot and return the connection, if there are both."""
        connection = self._nats
        if connection is None or not self._free_slots or self._inbox_refusal or connection.is_closed:
            return None
        self._free_slots -= 1
        return connection

    async def _in_turn(self, deadline_s: float) -> StrictNatsClient:
        """Make the connection, and wait for a slot in turn. TimedOut, Unavailable."""
        connection = await self._connected(deadline_s)
        self._check_inbox()
        if self._free_slots:
            self._free_slots -= 1
        else:
            await self._next_slot(deadline_s)
        return connection

    def _send(self, connection: StrictNatsClient, waiter: ReplyWaiter, outgoing: Outgoing) -> bool:
        """Send the message, for which a slot is taken; the waiter gets its token. True: await `pass_on` next."""
        token = self._last_token + 1
        try:
            if self._is_closed:  # `close` would not fail a publish that begins now
                raise ClientClosed
            must_pass_on = _post(connection, outgoing, f"{self._inbox}.{token}")
        except BaseException:
            self._give_slot()
            raise
        waiter.token = self._last_token = token
        self._in_flight[token] = waiter
        if waiter.due_s < self._look_s:
            self._set_timer(waiter.due_s)
        return must_pass_on

    async def _pass_on(self, connection: StrictNatsClient, waiter: OneAck, deadline_s: float) -> None:
        try:
            await connection.pass_on(deadline_s)  # at the deadline the waiter is told that it is late
        except BaseException:
            self.forget(waiter.token)
            raise

    def forget(self, token: int) -> None:
        """End a publish: its slot is free, and replies to it change nothing. May be called twice."""
        if self._in_flight.pop(token, None) is None:
            return
        if self._wait_for_slot:
            self._give_slot()
        else:
            self._free_slots += 1
        for flush in self._flushes:
            flush.ended(token)

    async def _next_slot(self, deadline_s: float) -> None:
        """Wait for a slot, in turn. TimedOut."""
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wait_for_slot.append(mine)
        try:
            async with asyncio.timeout_at(deadline_s):
                await mine
        except BaseException as error:
            if mine.done() and not mine.cancelled():
                self._give_slot()  # it came at the same moment
            elif mine in self._wait_for_slot:
                self._wait_for_slot.remove(mine)
            if not isinstance(error, TimeoutError):
                raise
            text = f"the time-out passed while {limits.PUBLISHES_IN_FLIGHT_MAX} earlier messages waited for their acks"
            raise TimedOut(text) from None

    def _give_slot(self) -> None:
        while self._wait_for_slot:
            if not (first := self._wait_for_slot.popleft()).done():
                first.set_result(None)
                return
        self._free_slots += 1

    def _set_timer(self, due_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._look_s = due_s
        self._timer = asyncio.get_running_loop().call_at(due_s, self._look_for_due)

    def _look_for_due(self) -> None:
        """Have those that are due send again, or fail; then wait for the next one."""
        self._timer, self._look_s = None, math.inf
        now_s = asyncio.get_running_loop().time()
        for waiter in [one for one in self._in_flight.values() if one.due_s <= now_s]:
            waiter.look(now_s)
        next_s = min((one.due_s for one in self._in_flight.values()), default=math.inf)
        if next_s < math.inf:
            self._set_timer(max(next_s, now_s + _LOOK_S))

    def note(self, error: BaseException, outcome: Outcome | None = None) -> None:
        """Have `flush` raise the error, if it is the first one, and closing tell of `outcome`, if no caller sees it."""
        if outcome is not None and not self._is_closed:
            self._unseen.note(outcome)
        elif outcome is not None:
            outcome.exception()  # asyncio need not log it: all was closed
        self._failures += 1
        self._first_failure = self._first_failure or error

    def _check_inbox(self) -> None:
        """Raise Unavailable if acks cannot arrive; nothing is sent then."""
        if self._inbox_refusal:
            text = f"NATS refuses the subscription for acks, so nothing was published: {self._inbox_refusal}"
            raise Unavailable(f'{text}; choose an inbox to which this user may subscribe ("inbox_prefix")')

    async def _connected(self, deadline_s: float) -> StrictNatsClient:
        # nats-py closes a connection for good if a server refuses its credentials twice; then make a new one.
        if self._nats is not None and not self._nats.is_closed:
            return self._nats
        if self._is_closed:
            raise ClientClosed
        from nats.errors import Error as NatsError

        shown = ", ".join(shown_url(url) for url in self.urls)
        try:
            async with asyncio.timeout_at(deadline_s), self._connecting:
                if self._nats is None or self._nats.is_closed:
                    self._nats = await ended_by_cancel(self._connect(), give_back)
                return self._nats
        except Unavailable:
            raise
        except TimeoutError:
            raise Unavailable(f"{not_connected(shown, self._last_error)}{self._last_error}") from None
        except (OSError, NatsError) as error:
            raise Unavailable(f"no connection to NATS at {shown}: {error}") from None

    async def _connect(self) -> StrictNatsClient:
        from penstock.client.publish.nats_client import Acks, StrictNatsClient

        connection = StrictNatsClient()
        options = {
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "name": self._name,
            "ping_interval": _PING_INTERVAL_S,
            "error_cb": self._failed,
            **self._options,
        }
        try:
            await first_connection(connection, self.urls, **options)
            self._inbox_refusal = self._last_error = ""
            self._inbox = inbox = connection.new_inbox()
            subscription = await connection.subscribe(f"{inbox}.*", cb=self._replied, pending_bytes_limit=-1)
            sid = subscription._id  # noqa: SLF001 (it has no public name)
            connection.acks = Acks(inbox, sid, many=self._acked, one=self._answered)
            for _ in range(2):  # a refusal precedes the PONG, but the first PING may overtake the subscription
                await connection.flush()
            if self._is_closed:
                raise Unavailable("the client was closed meanwhile")
        except BaseException:
            await give_back(connection)  # a partly made connection has tasks and a socket too
            raise
        return connection

    async def _failed(self, error: Exception) -> None:
        said = str(error)
        if not _is_refusal(self._last_error):  # keep a refusal: a later reset says less
            self._last_error = f" ({said})" if said else ""
        if _SUBSCRIPTION_REFUSED in said.lower() and self._inbox.lower() in said.lower():
            self._inbox_refusal = said.removeprefix("nats: ")
        if (refused := _PUBLISH_REFUSED.search(said.lower())) is not None:
            self._refuse(refused[1])

    def _refuse(self, lowered: str) -> None:
        """Fail publishes that the server refused; it reports the subject in lower case only."""
        waiters = [one for one in self._in_flight.values() if one.subject.lower() == lowered]
        inbox = lowered.rpartition(".")[0]
        if inbox == self._inbox.lower() and (echo := self._echoes.get(_token(lowered))) is not None:
            _end(echo)  # the server has processed that message, and so all published before it
        elif len({one.subject for one in waiters}) == 1:  # otherwise it is ambiguous
            for waiter in waiters:
                waiter.fail(_not_allowed(waiter.subject))
        elif not waiters and (self._unconfirmed or self._echoes):
            self.note(_not_allowed(lowered))

    def _acked(self, tokens: Sequence[int], bodies: Sequence[bytes]) -> None:
        """Take acks that were read together."""
        if (acks := parse_acks(bodies)) is None:
            for token, body in zip(tokens, bodies, strict=True):
                if (waiter := self._in_flight.get(token)) is not None:
                    waiter.reply(body)
            return
        in_flight = self._in_flight
        for token, ack in zip(tokens, acks, strict=True):
            if (waiter := in_flight.get(token)) is not None:
                waiter.acked(ack)

    def _answered(self, subject: bytes, data: bytes) -> None:
        """Take any other reply without headers."""
        token = _token(subject.decode("ascii", "replace"))
        if (waiter := self._in_flight.get(token)) is not None:
            waiter.reply(data)
        elif (echo := self._echoes.get(token)) is not None:
            _end(echo)

    async def _replied(self, message: Msg) -> None:
        """Take a reply with headers."""
        if (waiter := self._in_flight.get(_token(message.subject))) is None:
            return
        if not message.data and message.headers and message.headers.get("Status") == _NO_RESPONDERS:
            waiter.nobody()
        else:
            waiter.reply(message.data)


class _Flush:
    """Waits until all publishes up to a token have ended."""

    def __init__(self, last_token: int, left: int, future: asyncio.Future[None]) -> None:
        self._last_token = last_token
        self._left = left  # in flight, of those
        self.future = future

    def ended(self, token: int) -> None:
        """One publish has ended."""
        if token <= self._last_token:
            self._left -= 1
            if not self._left:
                _end(self.future)


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _token(subject: str) -> int:
    """Return the token at the end of a reply subject; 0, which no message has, if it is not of ours."""
    token = subject.rpartition(".")[2]
    return int(token) if token.isdecimal() and len(token) < _TOKEN_DIGITS_MAX else 0


@lru_cache(_SUBJECTS_KEPT)
def _mistake(subject: str) -> str | None:
    return subject_mistake(subject)


def _not_allowed(subject: str) -> Unavailable:
    return Unavailable(f"NATS does not let this user publish on {subject!r}, so the message was not stored")


def _outgoing(subject: str, value: Value, headers: dict[str, str] | None) -> Outgoing:
    if (mistake := _mistake(subject)) is not None:
        raise ValueError(mistake)
    return Outgoing(subject, payload(value), None if headers is None else header_block(headers))


def _post(connection: StrictNatsClient, outgoing: Outgoing, reply: str) -> bool:
    """Send a message; True: await `connection.pass_on()` next. RemoteError: it is too large. Unavailable."""
    # nats-py checks only the payload. A server closes the connection over a larger message, and all pending acks are
    # lost.
    block, payload_bytes, bytes_max = outgoing.header_block, len(outgoing.payload), connection.max_payload
    if (size_bytes := payload_bytes + (0 if block is None else len(block))) > bytes_max:
        which = "" if block is None else " with its headers"
        text = f"the message has {size_bytes} bytes{which}; the NATS server takes at most {bytes_max}"
        raise RemoteError(ErrorCode.TOO_LARGE, text, bytes_max=bytes_max)
    try:
        return connection.send(outgoing.frame(reply), payload_bytes)
    except Exception as error:
        from nats.errors import Error as NatsError  # not before: an import is looked up at each call

        if not isinstance(error, (OSError, NatsError)):
            raise
        raise Unavailable(f"NATS does not take the message: {error}") from None


async def give_back(connection: StrictNatsClient) -> None:
    """Close a connection, within a time; what fails at that counts for nothing."""
    with contextlib.suppress(Exception):  # a server that accepts no bytes must not block closing
        async with asyncio.timeout(_CLOSE_S):
            await connection.close()


async def ended_by_cancel(what: Coroutine[Any, Any, T], give_back: Callable[[T], Awaitable[None]]) -> T:
    """Await `what`; if the caller is cancelled, cancel `what` again and again until it has ended.

    Before Python 3.12 `asyncio.wait_for`, which nats-py uses, can swallow a cancellation; nats-py would then retry for
    ever. A result that arrives nevertheless is passed to `give_back`.
    """
    task = asyncio.ensure_future(what)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        while not task.done():
            task.cancel()
            await asyncio.wait((task,), timeout=_CANCEL_AGAIN_S)
        if not task.cancelled() and task.exception() is None:
            await give_back(task.result())
        raise
    return task.result()


async def first_connection(
    connection: StrictNatsClient,
    urls: Sequence[str],
    *,
    error_cb: Callable[[Exception], Awaitable[None]] | None,
    **options: Any,
) -> None:
    """Call `connection.connect`, which waits for unreachable servers.

    Unavailable at once if every server refuses the login, or offers no TLS although it is requested.
    """
    refusals: deque[bool] = deque(maxlen=len(urls))  # nats-py tries its servers in turn: one attempt at each
    is_made = False

    async def failed(error: Exception) -> None:
        if error_cb is not None:  # nats-py uses its own callback for None
            await error_cb(error)
        refusals.append(_is_refusal(str(error)))
        if not is_made and len(refusals) == refusals.maxlen and all(refusals):
            shown = ", ".join(map(shown_url, urls))
            raise Unavailable(f"{not_connected(shown, str(error))} ({error})")  # nats-py passes it on from `connect`

    plain, login = nats_login(urls, options)
    await connection.connect(plain, error_cb=failed, **{**options, **login})
    is_made = True


async def connected_to(
    connection: StrictNatsClient, urls: Sequence[str], name: str, options: Mapping[str, Any], timeout_s: float
) -> StrictNatsClient:
    """Connect, and reconnect by itself from then on. Unavailable."""
    from nats.errors import Error as NatsError

    last: list[str] = []

    async def failed(error: Exception) -> None:
        last[:] = [f" ({error})"]

    fixed = {"allow_reconnect": True, "max_reconnect_attempts": -1, "name": name, "ping_interval": _PING_INTERVAL_S}
    shown = ", ".join(map(shown_url, urls))
    try:
        async with asyncio.timeout(timeout_s):
            await ended_by_cancel(
                first_connection(connection, urls, **{"error_cb": failed, **fixed, **options}), _nothing
            )
    except BaseException as error:
        await give_back(connection)
        why = "".join(last)
        if isinstance(error, TimeoutError):
            raise Unavailable(f"{not_connected(shown, why)}{why}") from None
        if isinstance(error, OSError | NatsError) and not isinstance(error, Unavailable):
            raise Unavailable(f"no connection to NATS at {shown}: {error}") from None
        raise
    return connection


async def _nothing(_: None) -> None:
    """Give nothing back."""


def not_connected(shown: str, why: str) -> str:
    """Return the error text for a connection that was not made in time; `why` is nats-py's last error."""
    if _OFFERS_NO_TLS in why.lower():
        return f"no connection to NATS at {shown}"
    if _is_refusal(why):
        return f"NATS at {shown} asks for a login that it did not get"
    if _SAID_NOTHING in why.lower():
        # nats-py never ends an attempt that starts with TLS if the server starts with INFO, so it is not tried.
        first = "if it speaks TLS first (handshake_first: true), have it wait for that (handshake_first: auto)"
        return f"NATS at {shown} closed the connection before it said anything; {first}"
    text = f"no NATS server answers at {shown} in time"
    if f":{DEFAULT_PORT}" in shown:
        return f"{text}; {DEFAULT_PORT} is usually a broker's port for Penstock's clients, and NATS listens on 4222"
    return text


def _is_refusal(why: str) -> bool:
    return "authorization" in why.lower() or _OFFERS_NO_TLS in why.lower()
