"""The stream of the dead letters of one consumer, as a client reads it.

| invariant                                                                        | unless           |
|----------------------------------------------------------------------------------|------------------|
| a letter has the value and subject of the message that it names                  | permitted losses |
| each message of a consumer has one letter at most                                | as above         |
| a message that nobody acked, and that is pending no more, has a letter           | as above         |

Rules: letters are read one after the other, each by its sequence, from the first one on. The last invariant is checked
at the end of a run, when the consumer has nothing in hand.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.dead_letters import CONSUMER, LETTER, SEQUENCE, STREAM, SUBJECT, dead_letter_subject
from penstock.base.errors import RemoteError
from penstock.messages import AlterStreamRequest, CreateStreamRequest, CreateStreamResponse, Response
from penstock.testing.errors import ViolationError
from penstock.testing.simulation.broker.broker import Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory
from penstock.testing.simulation.nats import PublishedMessage
from tests.sim.models.api_client import ApiClient, fields_of
from tests.sim.models.api_stream import ApiStream
from tests.sim.models.requests import SimClient

NAME = "letters"
_AGAIN_US = 400_000
_NO_MESSAGE = 10037


class LetterStream:
    """Dead letters of consumers of one other stream."""

    def __init__(
        self, around: Surroundings, checks: Checks, client: ApiClient, program: Callable[[], SimClient], replicas: int
    ) -> None:
        """`program`: returns a client of the socket API that may do everything."""
        self.history: PartitionHistory | None = None
        self.stream_id = 0
        self.read_us = -1  # all that was stored before is read
        self._around = around
        self._checks = checks
        self._client = client
        self._program = program
        self._replicas = replicas
        self._next = 1  # sequence
        self._ids: dict[str, int] = {}  # of letters → sequence
        self._of: dict[str, set[int]] = {}  # consumer → offsets of its messages

    @property
    def is_excused(self) -> bool:
        """True if letters may be lost, or stored again."""
        history = self.history
        if history is None:
            return True
        is_lost = history.is_damaged or history.is_given_up or history.may_lose or bool(history.cuts)
        return is_lost or bool(history.damaged)

    def create(self, created: Callable[[], None]) -> None:
        """Create it; `created` is called once it is there."""
        subject = dead_letter_subject(NAME, ">")
        fields = {"name": NAME, "subject": subject, "replicas": self._replicas, "segment_bytes": 4_096}
        config = msgspec.convert(fields, StreamConfig)
        self._checks.begin(config)

        def ask() -> None:
            self._program().ask(CreateStreamRequest(config=config, timeout_ms=3_000), done)

        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            if not isinstance(response, CreateStreamResponse):
                self._around.scheduler.after(_AGAIN_US, ask)
                return
            self.stream_id = int(response.stream.stream_id)
            self.history = self._checks.created[self.stream_id] = self._checks.of(config.subject, 0)
            created()

        ask()

    def allow_unclean_election(self) -> None:
        for one in filter(None, (self.history, self.history and self.history.companion)):
            one.is_damaged = one.is_given_up = True
        request = AlterStreamRequest(name=NAME, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda _response, _raw: None)

    def read(self, source: ApiStream) -> None:
        """Read the letters of a stream's messages, for ever."""
        asked_us = self._around.scheduler.now_us

        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            if fields.get("error", {}).get("err_code") == _NO_MESSAGE:
                self.read_us = asked_us
            if "message" not in fields:
                self._around.scheduler.after(_AGAIN_US, lambda: self.read(source))
                return
            self._take(source, fields["message"])
            self.read(source)

        self._client.ask(f"STREAM.MSG.GET.{NAME}", {"seq": self._next, "next_by_subj": ">"}, done)

    def _take(self, source: ApiStream, message: dict[str, str]) -> None:
        """Check one letter."""
        self._around.count("dead letters")
        sequence = int(message["seq"])
        self._next = sequence + 1
        if self.is_excused:
            return
        lines = base64.b64decode(message["hdrs"]).decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines if line)
        letter, consumer, offset = headers[LETTER], headers[CONSUMER], int(headers[SEQUENCE]) - 1
        where = f"{NAME}: sequence {sequence}, letter {letter} of {consumer}, offset {offset}"
        if headers[STREAM] != source.name:
            raise ViolationError(f"{where}: it is one of stream {headers[STREAM]}")
        value = base64.b64decode(message.get("data", ""))
        source.reads(offset, headers[SUBJECT].encode(), value, where)
        if letter in self._ids:
            raise ViolationError(f"{where}: it was stored at sequence {self._ids[letter]} before")
        self._ids[letter] = sequence
        self._of.setdefault(consumer, set()).add(offset)

    def offsets_of(self, consumer: str) -> set[int]:
        """Return the offsets of a consumer's messages that have letters."""
        return self._of.get(consumer, set())
