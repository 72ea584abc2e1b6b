"""Dead letters of consumers, at the leader of the stream that keeps them: each is stored once, however often it comes.

Rules: the letters of a partition are stored one after the other. The leader knows which ones its log has, from a time
on: it reads the log back to the time of the message that a letter is about, unless it knows the letters from then on
already, and looks a letter up before it appends it. So a letter whose answer was lost, or that an earlier leader of
the other stream sent, is found however long ago that was, as long as the log has it; no deduplication window counts.
What is known ends with the leadership: an appended letter that the next leader does not have was never there.

A row counts as a letter on a subject of dead letters only: on the stream's other subjects publishers may write the same
header. One that was deleted counts, as long as the log has its row: who deletes a letter has seen it.

    asked → queued → log read back, rows checked → looked up ─┬─▶ appended → committed: answered
                                                              └─ found: answered once it is committed

No log is read further back than LETTER_READ_BYTES_MAX, and the last LETTERS_KNOWN_MAX letters are remembered: of those
that are older one may be stored twice.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from operator import itemgetter

from penstock.base import limits
from penstock.base.dead_letters import LETTER, dead_letter_subject
from penstock.base.errors import ErrorCode, RemoteError
from penstock.base.ids import Offset
from penstock.batch import codec
from penstock.commitlog import LogView
from penstock.messages import AppendResponse, Response, StoreLetterRequest, StoreLetterResponse
from penstock.node.api.append_api import AppendApi
from penstock.node.context import Context
from penstock.node.partition.internal_streams import users_own
from penstock.node.partition.log_queries import CheckAppend, Query, RowRules
from penstock.node.partition.partition import Partition
from penstock.node.partition.partition_errors import as_remote_error
from penstock.node.replicas.partition_lookup import PartitionLookup
from penstock.node.security.access import Call
from penstock.node.step import InternalCaller, Lane
from penstock.replication.leader import Leadership

CLOCKS_DIFFER_US = 600_000_000
"""A letter's timestamp may be so much before that of its message: they are of two brokers."""
_LINE = f"\r\n{LETTER}: ".encode()


class PrepareLetter(Query):
    """Reads the letters of a log since a time, if it has to, and checks the row of a new one; in a disk thread."""

    def __init__(self, view: LogView, since_us: int | None, check: CheckAppend, stream: str) -> None:
        """`since_us`: None: what is known goes back far enough."""
        super().__init__(view)
        self._subjects = dead_letter_subject(stream, "")
        self._since_us = since_us
        self._check = check
        self.found: dict[str, int] = {}  # ids of letters, with their offsets

    def run(self) -> None:
        """Raise RemoteError, OSError or QueryGivenUpError."""
        self._check.run()
        view, since_us = self._view, self._since_us
        if since_us is None or view.log_start == view.log_end:
            return
        start = view.offset_at(since_us, end=view.log_end)
        for _, data in self._batches(start, view.log_end, reverse=True, as_stored=True):
            rows = codec.check_rows(data)
            columns = (rows.column(name).to_pylist() for name in ("offset", "subject", "headers"))
            for offset, subject, block in zip(*columns, strict=True):
                if block is not None and subject.startswith(self._subjects) and (letter := _letter_of(block)):
                    self.found[letter] = offset
            if self.looked_bytes >= limits.LETTER_READ_BYTES_MAX or len(self.found) >= limits.LETTERS_KNOWN_MAX:
                return


def _letter_of(block: bytes) -> str:
    """Return the id in the headers of a dead letter; empty: it has none."""
    at = block.find(_LINE)
    if at < 0:
        return ""
    begin = at + len(_LINE)
    return block[begin : block.find(b"\r\n", begin)].decode(errors="replace")


def _elsewhere(partition: Partition) -> RemoteError:
    return RemoteError(ErrorCode.NOT_LEADER, f"{partition.label} is led by another broker")


class _Known:
    """The letters of one partition in one leadership."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.since_us: int | None = None  # they are known from this time on; None: not at all
        self.offsets: dict[str, int] = {}  # by id, the oldest one first
        self.queue: deque[tuple[Call, StoreLetterRequest]] = deque()
        self.is_busy = False
        self.held: Call | None = None  # waits until it is known what its row is judged by

    def learn(self, found: dict[str, int], since_us: int) -> None:
        """Take the letters that the log was found to have since a time."""
        by_offset = sorted((self.offsets | found).items(), key=itemgetter(1))
        self.offsets = dict(by_offset[-limits.LETTERS_KNOWN_MAX :])
        self.since_us = since_us

    def stored(self, letter: str, offset: int) -> None:
        """Take one that is behind all others, and forget the oldest one if they are too many."""
        self.offsets[letter] = offset
        if len(self.offsets) > limits.LETTERS_KNOWN_MAX:
            del self.offsets[next(iter(self.offsets))]


class Letters:
    """Dead letters for the partitions that this broker leads."""

    def __init__(self, context: Context, storing: AppendApi) -> None:
        self._context = context
        self._outbox = context.outbox
        self._storing = storing
        self._known: dict[Partition, _Known] = {}
        self._waiting = 0

    def store(self, find: PartitionLookup, call: Call, request: StoreLetterRequest) -> None:
        """Store a letter. RemoteError as from `PartitionLookup.led`; bad_request, overloaded, not_yet."""
        partition = users_own(find.led(request.stream_id, 0))
        if len(partition.stream.partitions) > 1:
            text = f"stream {partition.stream.name!r} has several partitions; dead letters need one of one partition"
            raise RemoteError(ErrorCode.BAD_REQUEST, text)
        if (refusal := self._storing.not_led(partition)) is not None:
            raise refusal
        if partition.leadership is None:
            raise RemoteError(ErrorCode.NOT_YET, f"{partition.label} is not led now; ask again in a moment")
        if self._waiting >= limits.LETTERS_WAITING_MAX:
            raise RemoteError(ErrorCode.OVERLOADED, f"{self._waiting} dead letters wait here; ask again in a moment")
        known = self._known.get(partition)
        if known is None or known.leadership is not partition.leadership:
            self.ended(partition)
            known = self._known[partition] = _Known(partition.leadership)
        known.queue.append((call, request))
        self._waiting += 1
        self._next(partition, known)

    def ended(self, partition: Partition) -> None:
        """A leadership is over: those who wait ask the next leader."""
        known = self._known.pop(partition, None)
        if known is None:
            return
        if known.held is not None:
            self._answer(known.held, _elsewhere(partition))
            known.held = None
        while known.queue:
            call, _ = known.queue.popleft()
            self._answer(call, _elsewhere(partition))

    def _answer(self, call: Call, response: Response | RemoteError) -> None:
        self._waiting -= 1
        self._outbox.reply(call.caller, response)

    def _next(self, partition: Partition, known: _Known) -> None:
        """Prepare the first letter of the queue, unless one is under way."""
        if known.is_busy or not known.queue:
            return
        if partition.leadership is not known.leadership:
            self.ended(partition)
            return
        call, request = known.queue.popleft()
        known.is_busy = True
        wanted_us = max(0, request.since_us - CLOCKS_DIFFER_US)
        is_known = known.since_us is not None and known.since_us <= wanted_us
        rules = RowRules.of(partition.stream.config, partition.key.partition)
        try:
            check = CheckAppend(call.raw, rules._replace(values=partition.refusing_check()))
            query = PrepareLetter(partition.view(), None if is_known else wanted_us, check, partition.stream.name)
        except RemoteError as refusal:
            self._answer(call, refusal)
            self._go_on(partition, known)
            return

        def done(error: Exception | None) -> None:
            try:
                if self._known.get(partition) is not known or partition.leadership is not known.leadership:
                    raise _elsewhere(partition)
                if error is not None:
                    raise as_remote_error(error)
            except RemoteError as refusal:
                self._answer(call, refusal)
                self._go_on(partition, known)
                return
            if not is_known:
                known.learn(query.found, wanted_us)
            self._take(partition, known, call, request, check)

        self._outbox.work(Lane.READ, query.run, done)

    def _go_on(self, partition: Partition, known: _Known) -> None:
        known.is_busy = False
        if self._known.get(partition) is known:
            self._next(partition, known)

    def _take(
        self, partition: Partition, known: _Known, call: Call, request: StoreLetterRequest, check: CheckAppend
    ) -> None:
        """Answer where a letter is, or append it."""
        offset = known.offsets.get(request.letter)
        if offset is not None:
            if offset < partition.committed_end:
                self._answer(call, StoreLetterResponse(offset=Offset(offset), is_new=False))
            else:
                self._answer(call, RemoteError(ErrorCode.NOT_YET, "the letter is being committed; ask again"))
            self._go_on(partition, known)
            return
        if check.count != 1:
            self._answer(call, RemoteError(ErrorCode.BAD_REQUEST, "a dead letter is one row"))
            self._go_on(partition, known)
            return
        try:
            if self._known.get(partition) is not known or partition.leadership is not known.leadership:
                raise _elsewhere(partition)
            go_on = partial(self._take_held, partition, known, request, check)
            if not self._storing.is_ready(partition, check.message, go_on):
                known.held = call
                return
        except RemoteError as refusal:
            self._answer(call, refusal)
            self._go_on(partition, known)
            return
        log_end = partition.log.log_end
        self._storing.append_to(
            partition, InternalCaller(partial(self._stored, partition, known, call)), check.message, check.asked
        )
        if partition.log.log_end > log_end:
            known.stored(request.letter, log_end)
        self._go_on(partition, known)

    def _take_held(self, partition: Partition, known: _Known, request: StoreLetterRequest, check: CheckAppend) -> None:
        """Take the letter that was held, unless it was answered meanwhile."""
        call, known.held = known.held, None
        if call is not None:
            self._take(partition, known, call, request, check)

    def _stored(self, partition: Partition, known: _Known, call: Call, response: Response | RemoteError) -> None:
        if isinstance(response, AppendResponse):
            self._answer(call, StoreLetterResponse(offset=response.base_offset, is_new=True))
        else:
            assert isinstance(response, RemoteError), response
            self._answer(call, response)
