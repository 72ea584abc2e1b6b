"""Consumers with acks, their clients, and what is asked about them: a stream of jobs, and a crew for each consumer.

Rules: the stream is made by the socket API, so that it can be synced; all else goes over JetStream's API. Jobs are on
a few subjects, which are keys, too. See `crews` for the invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random
from typing import Any

import msgspec

from penstock.base.config import StreamConfig
from penstock.base.errors import RemoteError
from penstock.jetstream.stream_state import api_time
from penstock.messages import AlterStreamRequest, CreateStreamRequest, CreateStreamResponse, Response
from penstock.testing.promises import AckBody
from penstock.testing.simulation.broker.broker import SimBroker, Surroundings
from penstock.testing.simulation.checks.checks import Checks, PartitionHistory, SentMessage
from penstock.testing.simulation.nats import PublishedMessage
from tests.sim.checks.refusals import Refusals
from tests.sim.models.api_client import ApiClient, fields_of
from tests.sim.models.api_stream import ApiStream
from tests.sim.models.client_state import StreamGeneration, kind_of
from tests.sim.models.crews import Crew, CrewRules
from tests.sim.models.letters import NAME as LETTERS
from tests.sim.models.letters import LetterStream
from tests.sim.models.requests import SimClient
from tests.sim.models.sending import Sender
from tests.sim.models.workers import QUEUE, Worker
from tests.sim.plan.plan import Act, PlannedOperation

NAME = "jobs"
_SUBJECT = f"{NAME}.g1.>"
_KEYS = 4
_S = 1_000_000
_WORKERS = 3
_AGAIN_US = 400_000
_NO_CONSUMER = 10014
_INFO_US = 2_000_000  # between two looks at the end
ACTS = 200  # the number of an operation modulo this is what happens
DELETION_ACT = 130  # of a message
DELETE_CREW_ACT = 193
RESET_ACT = 194
_DURABILITIES = ("auto", "auto", "fsync")


def _rules(name: str, waits_s: tuple[float, ...], *, is_push: bool = False, **given: Any) -> CrewRules:
    waits_us = tuple(int(one * _S) for one in waits_s)
    max_deliver, wanted = given.pop("max_deliver", 0), given.pop("wanted", b"")
    config: dict[str, Any] = {"durable_name": name, "ack_policy": "explicit", "ack_wait": waits_us[0] * 1_000}
    config |= {"max_deliver": max_deliver or -1, "filter_subject": wanted.decode()}
    config |= {"max_ack_pending": given.get("most_in_hand", 1_000)}
    if len(waits_us) > 1:
        config |= {"backoff": [wait_us * 1_000 for wait_us in waits_us]}
    if is_push:
        config |= {"deliver_subject": f"crew.of.{name}", "deliver_group": QUEUE.decode()}
    if given.get("is_ordered"):
        config |= {"metadata": {"penstock.order_by": "subject"}}
    if letters := given.get("letters"):
        config |= {"metadata": {"penstock.dead_letters": letters}}
    return CrewRules(name, config, waits_us, max_deliver, wanted, is_push=is_push, **given)


CREWS = (
    _rules("plain", (2.0,)),
    _rules("limited", (1.5,), max_deliver=3, most_in_hand=15),
    _rules("patient", (15.0,), max_deliver=50, is_patient=True, wanted=b"jobs.g1.1"),
    _rules("second", (1.0, 15.0), max_deliver=50, is_patient=True),
    _rules("pushed", (2.0,), is_push=True, most_in_hand=40),
    _rules("ordered", (1.5,), is_ordered=True),
    _rules("mourned", (1.0,), max_deliver=2, letters=LETTERS),
)


class Working:
    """The stream and the crews of one run. `program`: returns a client of the socket API that may do everything."""

    def __init__(
        self,
        around: Surroundings,
        checks: Checks,
        refusals: Refusals,
        brokers: Mapping[int, SimBroker],
        program: Callable[[], SimClient],
        random: Random,
    ) -> None:
        self.acts: dict[Act, Callable[[PlannedOperation], None]] = {Act.WORK: self._act}
        self.generations: list[StreamGeneration] = []
        self._around = around
        self._checks = checks
        self._brokers = brokers
        self._program = program
        self._random = random
        self._sender = Sender(around, checks, refusals, b"_INBOX.jobs.")
        self._client = ApiClient(around, b"_INBOX.crews.")
        self._letters = LetterStream(around, checks, self._client, program, min(3, len(brokers)))
        self._stream: ApiStream | None = None
        self._crews: list[Crew] = []
        self._workers: dict[Crew, list[Worker]] = {}
        self._making: set[Crew] = set()
        self._idle: dict[Crew, bool] = {}  # as its info says, since the end of the faults
        self._idle_us: dict[Crew, int] = {}  # since when
        self._numbers = 0
        self._is_ending = False

    def _trace(self, what: str) -> None:
        self._around.trace.add("working", what)

    @property
    def _now_us(self) -> int:
        return self._around.scheduler.now_us

    # The stream

    def create(self) -> None:
        durability = _DURABILITIES[int(self._random.random() * len(_DURABILITIES))]
        fields = {"name": NAME, "subject": _SUBJECT, "replicas": min(3, len(self._brokers)), "segment_bytes": 4_096}
        config = msgspec.convert({**fields, "durability": durability}, StreamConfig)
        self._checks.begin(config)
        self._ask_to_create(config)

    def _ask_to_create(self, config: StreamConfig) -> None:
        def done(response: Response | RemoteError | None, _raw: bytes) -> None:
            self._trace(f"create {config.subject}: {kind_of(response)}")
            if not isinstance(response, CreateStreamResponse):
                self._around.scheduler.after(_AGAIN_US, lambda: self._ask_to_create(config))
                return
            stream_id = int(response.stream.stream_id)
            history = self._checks.created[stream_id] = self._checks.of(config.subject, 0)
            self.generations.append(StreamGeneration(config, stream_id))
            stream = self._stream = ApiStream(history, is_keyed=False)
            stream.is_made = True
            self._crews = [Crew(stream, rules) for rules in CREWS]
            for crew in self._crews:
                if not crew.rules.letters:
                    self._make(crew)
            self._letters.create(lambda: self._begin_letters(stream))

        self._program().ask(CreateStreamRequest(config=config, timeout_ms=3_000), done)

    def _begin_letters(self, stream: ApiStream) -> None:
        """The stream of dead letters is there."""
        self._letters.read(stream)
        for crew in self._crews:
            if crew.rules.letters:
                self._make(crew)

    def allow_unclean_election(self, stream_id: int) -> bool:
        """Allow an unclean leader election; return False if the id is another stream's."""
        if stream_id and stream_id == self._letters.stream_id:
            self._letters.allow_unclean_election()
            return True
        if self._stream is None or stream_id != self.generations[0].stream_id:
            return False
        history = self._stream.history
        for one in filter(None, (history, history.companion, history.consumers)):
            one.is_damaged = one.is_given_up = True
        request = AlterStreamRequest(name=NAME, changes={"allow_unclean_election": True})
        self._program().ask(request, lambda response, _raw: self._trace(f"unclean: {kind_of(response)}"))
        return True

    def acted(self, broker: SimBroker) -> None:
        """Nothing is to be noted after an event of a broker."""

    # Crews

    def _make(self, crew: Crew) -> None:
        if crew in self._making:
            return
        self._making.add(crew)

        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            error = fields.get("error")
            self._trace(f"made {crew.name}: {error or fields.get('created')}")
            if not fields or error is not None:
                self._around.scheduler.after(_AGAIN_US, ask)
                return
            self._making.discard(crew)
            self._around.count("crews made")
            crew.made(fields["created"], self._now_us)
            if crew not in self._workers:
                self._workers[crew] = [
                    Worker(self._around, self._client, crew, self._random, partial(self._missing, crew))
                    for _ in range(_WORKERS)
                ]
                for worker in self._workers[crew]:
                    worker.is_diligent = self._is_ending
                    worker.start()

        def ask() -> None:
            config = {**crew.rules.config, "name": crew.rules.name}
            where = f"CONSUMER.CREATE.{NAME}.{crew.rules.name}"
            if crew.rules.wanted:
                where += f".{crew.rules.wanted.decode()}"
            self._client.ask(where, {"stream_name": NAME, "config": config}, done)

        ask()

    def _missing(self, crew: Crew) -> None:
        """Ask for a consumer that a client has not found."""
        self._look(crew)

    def _look(self, crew: Crew) -> None:
        """Ask for the info of a crew, and check it."""
        asked = crew.asked()

        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            error = fields.get("error", {})
            if error.get("err_code") == _NO_CONSUMER:
                crew.missing(self._now_us)
                if not crew.is_deleting:
                    self._make(crew)
            if not fields or error:
                return
            self._around.count("infos of crews")
            crew.told(asked, fields, self._now_us)
            is_idle = not (fields["num_pending"] or fields["num_ack_pending"])
            self._idle_us.setdefault(crew, self._now_us)
            self._idle[crew] = is_idle
            if not is_idle:
                del self._idle_us[crew]

        self._client.ask(f"CONSUMER.INFO.{NAME}.{crew.rules.name}", None, done)

    def _delete_crew(self, crew: Crew) -> None:
        if crew.is_deleting or crew in self._making or crew.rules.letters:
            return
        crew.is_deleting = True
        crew.asks_for_change(self._now_us)
        tries = 0

        def ask() -> None:
            nonlocal tries
            tries += 1
            self._client.ask(f"CONSUMER.DELETE.{NAME}.{crew.rules.name}", None, done)

        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            code = fields.get("error", {}).get("err_code", 0)
            if not fields.get("success") and code != _NO_CONSUMER:
                self._around.scheduler.after(_AGAIN_US, ask)
                return
            self._around.count("crews deleted")
            crew.changed(self._now_us, is_sure=tries == 1)
            crew.created, crew.deleted_us, crew.remade_us = "", self._now_us, self._now_us + _AGAIN_US
            self._around.scheduler.after(_AGAIN_US, again)

        def again() -> None:
            crew.is_deleting = False
            self._make(crew)

        ask()

    def _reset(self, crew: Crew, sequence: int) -> None:
        if crew.is_deleting or crew in self._making or crew.rules.letters:
            return
        crew.asks_for_change(self._now_us)
        tries = 0

        def ask() -> None:
            nonlocal tries
            tries += 1
            request = {"seq": sequence} if sequence else None
            self._client.ask(f"CONSUMER.RESET.{NAME}.{crew.rules.name}", request, done)

        def done(answer: PublishedMessage | None) -> None:
            fields = fields_of(answer)
            if not fields or fields.get("error", {}).get("code") in (408, 500, 503):
                self._around.scheduler.after(_AGAIN_US, ask)
                return
            self._around.count("crews reset", "error" not in fields)
            begins_at = 0 if "error" in fields else fields.get("reset_seq", 1) - 1
            crew.changed(self._now_us, is_sure=tries == 1, begins_at=begins_at)

        ask()

    def _pause(self, crew: Crew, seconds: int) -> None:
        """Pause a consumer for a while, or let it go on."""
        leader = next((one for one in self._brokers.values() if one.node is not None), None)
        if leader is None or leader.node is None:
            return
        request = {}
        if seconds:
            request["pause_until"] = api_time(leader.node.now.wall_us + seconds * _S)
        self._around.count("crews paused", bool(seconds))
        self._client.ask(f"CONSUMER.PAUSE.{NAME}.{crew.rules.name}", request, lambda _: None)

    # Acts

    def _act(self, operation: PlannedOperation) -> None:
        stream, chance = self._stream, operation.number
        if stream is None:
            return
        act, more = chance % ACTS, chance // ACTS
        crew = self._crews[more % len(self._crews)]
        if act < DELETION_ACT:
            for number in range(1 + more % 3):
                self._send(stream, (more + number) % _KEYS)
        elif act < 150:
            self._delete(stream, more)
        elif act < 152:
            self._purge(stream, more)
        elif act < 185:
            self._look(crew)
        elif act < 189 and crew in self._workers:
            self._workers[crew][more // 8 % _WORKERS].die()
        elif act < DELETE_CREW_ACT:
            self._pause(crew, more // 8 % 3)
        elif act == DELETE_CREW_ACT:
            self._delete_crew(crew)
        elif act == RESET_ACT:
            live = stream.live_of(b"")
            self._reset(crew, 0 if not live or more // 8 % 2 else live[more // 16 % len(live)] + 1)

    def _send(self, stream: ApiStream, key: int) -> None:
        self._numbers += 1
        subject = f"{NAME}.g1.{key}".encode()
        name = b"%b/%d/" % (subject, self._numbers)
        message = SentMessage(subject, name, name)
        self._checks.sends(stream.history.config, message)
        stream.sends(message, self._now_us)

        def told(ack: AckBody) -> None:
            if ack.error is None:
                stream.acked(name, self._now_us)

        self._sender.send((stream.history,), message, 0, told=told)

    def _delete(self, stream: ApiStream, chance: int) -> None:
        """Delete a message, mostly one of the last: it is pending."""
        live = stream.live_of(b"")[-12:]
        if not live:
            return
        offset = live[chance % len(live)]
        stream.deletes(offset, self._now_us)

        def done(answer: PublishedMessage | None) -> None:
            if fields_of(answer).get("success"):
                self._around.count("jobs deleted")
                stream.has_deleted(offset, self._now_us)

        self._client.ask(f"STREAM.MSG.DELETE.{NAME}", {"seq": offset + 1, "no_erase": True}, done)

    def _purge(self, stream: ApiStream, chance: int) -> None:
        """Purge all but the last few messages."""
        live = stream.live_of(b"")
        if len(live) < 12:
            return
        begin = live[-1 - chance % 12]
        stream.history.truncating = max(stream.history.truncating, begin)

        def done(answer: PublishedMessage | None) -> None:
            if fields_of(answer).get("success"):
                self._around.count("jobs purged")

        self._client.ask(f"STREAM.PURGE.{NAME}", {"seq": begin + 1}, done)

    # The end

    def waits_for(self, is_stuck: Callable[[PartitionHistory], bool]) -> Callable[[], str]:
        """Return a function that names the crews that are not done."""
        self._is_ending = True
        for workers in self._workers.values():
            for worker in workers:
                worker.is_diligent = True
        self._idle.clear()
        begun, looked_us = 0 if self._stream is None else self._stream.history.acks, 0
        for crew in self._crews:
            self._pause(crew, 0)

        def left() -> str:
            nonlocal looked_us
            stream = self._stream
            if stream is None:
                return f"{NAME} is not made"
            history = stream.history
            if any(is_stuck(one) or one.is_damaged for one in filter(None, (history, history.consumers))):
                return ""
            if history.acks <= begun:
                self._send(stream, 0)
                return f"{NAME} stores nothing"
            waiting = [f"{one.name} {self._lacks(one)}".strip() for one in self._crews if not self._is_done(one)]
            if waiting and self._now_us >= looked_us + _INFO_US:
                looked_us = self._now_us
                for crew in self._crews:
                    self._look(crew)
                    self._pause(crew, 0)
            return f"{', '.join(waiting)} is not done" if waiting else ""

        return left

    def _is_done(self, crew: Crew) -> bool:
        if crew in self._making or crew.is_deleting:
            return False
        return self._idle.get(crew, False) and (crew.is_excused or not (crew.undelivered() or self._lacks(crew)))

    def _lacks(self, crew: Crew) -> str:
        """Say which letters of an idle consumer are not read; empty: none."""
        letters = self._letters
        if not crew.rules.letters or crew not in self._idle_us or letters.is_excused or crew.has_lost:
            return ""
        if letters.read_us <= self._idle_us[crew]:
            return "they are not read yet"
        lacking = crew.without_letters(letters.offsets_of(crew.rules.name))
        return f"offsets {lacking} have no letter" if lacking else ""

    def check(self) -> None:
        """After the audit."""
        if self._stream is not None:
            self._stream.check()
