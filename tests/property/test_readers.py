"""Readers of JetStream's API against a list: each gets a gapless, ordered, filtered copy of the live committed rows.

Whatever is published, deleted, purged, truncated, limited, restarted meanwhile, and however slowly nats-server and the
client take: no message comes twice to one reader or out of order, none that was deleted before it could be sent, and
none is missing that is still there. `num_pending` is exact, of each message too while nothing is under way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.base.ids import PartitionId
from penstock.base.subjects import matches
from penstock.messages import DeleteMessagesRequest, PurgeSubjectRequest, TruncateRequest
from penstock.vfs.memory import Keep
from tests.extent import examples
from tests.unit.jetstream.readers.gateways import Delivered, ReaderBroker

S = 1_000_000_000  # ns
SUBJECTS = ("s.a", "s.b", "s.c.d", "s.c.e")
FILTERS: tuple[dict[str, Any], ...] = (
    {},
    {"filter_subject": "s.a"},
    {"filter_subject": "s.c.*"},
    {"filter_subject": "s.>"},
    {"filter_subjects": ["s.b", "s.c.>"]},
    {"filter_subject": "other.>"},
)


@dataclass
class Client:
    """One reader as its client sees it: an ordered consumer, which is made anew behind the last message it has."""

    name: str
    config: dict[str, Any]
    is_pull: bool
    begin: int = 0  # sequence from which on it wants messages
    got: list[int] = field(default_factory=list)
    asked: int = 0  # messages of pull requests that have not come
    consumer_seq: int = 0

    @property
    def inbox(self) -> str:
        return f"inbox.{self.name}"

    def wants(self, subject: str) -> bool:
        patterns = self.config.get("filter_subjects") or [self.config.get("filter_subject", ">")]
        return any(matches(one, subject) for one in patterns)


class ReadersMachine(RuleBasedStateMachine):
    """One stream, its messages as a list, and clients."""

    def __init__(self) -> None:
        super().__init__()
        self.broker: ReaderBroker
        self.rows: dict[int, str] = {}  # live: sequence → subject
        self.last = 0
        self.limit = 0
        self.clients: dict[str, Client] = {}
        self.made = 0
        self.flows: dict[str, str] = {}  # flow-control messages without an answer, by inbox

    @initialize(limit=st.sampled_from((0, 0, 1, 2)))
    def create(self, limit: int) -> None:
        self.broker = ReaderBroker().start()
        self.limit = limit
        config = {"max_messages_per_subject": limit} if limit else {}
        self.broker.create("s", segment_bytes=4_096, **config)

    # The log

    @rule(subjects=st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=6), size=st.sampled_from((0, 10, 3_000)))
    def publish(self, subjects: list[str], size: int) -> None:
        for subject in subjects:
            self.last += 1
            self.rows[self.last] = subject
            if self.limit:
                same = [seq for seq, one in self.rows.items() if one == subject]
                for seq in same[: -self.limit]:
                    del self.rows[seq]
        self.broker.deliver([(one.encode(), None, None, b"x" * size) for one in subjects])
        while self.shown_end < self.last:  # what a limit hides is decided a moment later
            self.collect()
            self.broker.tick(10)
            self.broker.settle()
        self.collect()

    @property
    def shown_end(self) -> int:
        shown = self.broker.node.shown(self.broker.stream_id("s"), PartitionId(0))
        return 0 if shown is None else shown.end

    @rule(number=st.integers(0, 30))
    def delete(self, number: int) -> None:
        if self.rows:
            seq = sorted(self.rows)[number % len(self.rows)]
            del self.rows[seq]
            self.broker.request(DeleteMessagesRequest(stream_id=self.broker.stream_id("s"), offsets=(seq - 1,)))
            self.broker.settle()
            self.collect()

    @rule(subject=st.sampled_from(("s.a", "s.c.>", "s.>")))
    def purge(self, subject: str) -> None:
        self.rows = {seq: one for seq, one in self.rows.items() if not matches(subject, one)}
        self.broker.request(PurgeSubjectRequest(stream_id=self.broker.stream_id("s"), subject=subject))
        self.broker.settle()
        self.collect()

    @rule(number=st.integers(0, 60))
    def truncate(self, number: int) -> None:
        before = min(number, self.last)
        self.rows = {seq: one for seq, one in self.rows.items() if seq > before}
        self.broker.request(TruncateRequest(stream_id=self.broker.stream_id("s"), before=before))
        self.broker.settle()
        self.collect()

    # Clients

    @precondition(lambda self: len(self.clients) < 5)
    @rule(
        filters=st.sampled_from(FILTERS),
        policy=st.sampled_from(("all", "new", "by_start_sequence")),
        is_pull=st.booleans(),
        start=st.integers(1, 40),
    )
    def join(self, filters: dict[str, Any], policy: str, is_pull: bool, start: int) -> None:
        self.made += 1
        client = Client(f"c{self.made}", {**filters, "deliver_policy": policy}, is_pull)
        if policy == "by_start_sequence":
            client.config["opt_start_seq"] = client.begin = start
        client.begin = self.last + 1 if policy == "new" else client.begin
        self.clients[client.name] = client
        self.make(client)

    def make(self, client: Client) -> None:
        config = {**client.config, "inactive_threshold": 3_600 * S}
        if not client.is_pull:
            config |= {"deliver_subject": client.inbox, "flow_control": True, "idle_heartbeat": 60 * S}
        client.consumer_seq = client.asked = 0
        info = self.broker.consumer("s", client.name, **config)
        assert info["num_pending"] == len(self.missing(client)), (info, client)
        self.collect()

    def missing(self, client: Client) -> list[int]:
        """Sequences that are there and that the client has not got."""
        done = max([client.begin - 1, *client.got[-1:]])
        return [seq for seq, subject in self.rows.items() if seq > done and client.wants(subject)]

    @rule(number=st.integers(0, 10), batch=st.integers(1, 9), no_wait=st.booleans())
    def pull(self, number: int, batch: int, no_wait: bool) -> None:
        if pulling := [client for client in self.clients.values() if client.is_pull]:
            client = pulling[number % len(pulling)]
            client.asked += batch
            request = {"batch": batch, "no_wait": True} if no_wait else {"batch": batch, "expires": 600 * S}
            self.broker.send(f"CONSUMER.MSG.NEXT.s.{client.name}", request, reply=client.inbox)
            self.collect()

    @rule()
    def answer_flow_control(self) -> None:
        flows, self.flows = self.flows, {}
        for reply in flows.values():
            self.broker.flow(reply)
        self.collect()

    @rule(number=st.integers(0, 10))
    def leave(self, number: int) -> None:
        if self.clients:
            client = self.clients.pop(sorted(self.clients)[number % len(self.clients)])
            assert self.broker.api(f"CONSUMER.DELETE.s.{client.name}")["success"]

    @rule(is_writable=st.booleans())
    def nats_server_takes(self, is_writable: bool) -> None:
        self.broker.leaf.is_writable = is_writable
        self.broker.turn()
        self.collect()

    @rule(ms=st.integers(1, 3_000))
    def wait(self, ms: int) -> None:
        self.broker.tick(ms)
        self.collect()

    @rule()
    def restart(self) -> None:
        self.broker.settle()
        self.collect()
        self.broker = self.broker.crash(Keep.SYNCED).start()
        self.broker.tick(100)
        self.broker.settle()
        self.flows.clear()
        for client in self.clients.values():
            last = client.got[-1] if client.got else client.begin - 1
            client.config = {**client.config, "deliver_policy": "by_start_sequence", "opt_start_seq": max(1, last + 1)}
            self.make(client)

    # What came

    def collect(self) -> None:
        """Take what was delivered, and check it."""
        for one in self.broker.delivered():
            client = self.clients.get(one.inbox.removeprefix("inbox."))
            if client is None:
                continue
            if one.stream_seq:
                self.check(client, one)
            elif one.status.startswith("100 Flow"):
                self.flows[one.inbox] = one.reply
            elif one.status.startswith("404"):
                client.asked = -1  # how many were left is not known here

    def check(self, client: Client, one: Delivered) -> None:
        assert one.stream_seq >= client.begin
        assert not client.got or one.stream_seq > client.got[-1], (one, client)
        assert client.wants(one.subject)
        assert one.consumer_seq == client.consumer_seq + 1
        skipped = [seq for seq in self.missing(client) if seq < one.stream_seq]
        assert not skipped, (one, skipped)
        client.consumer_seq += 1
        client.got.append(one.stream_seq)

    @invariant()
    def counts_are_exact(self) -> None:
        if not self.clients:
            return
        self.broker.settle()
        for client in self.clients.values():
            self.collect()
            info = self.broker.api(f"CONSUMER.INFO.s.{client.name}")
            self.collect()
            assert info["num_pending"] == len(self.missing(client)), (info, client, self.missing(client))

    def teardown(self) -> None:
        """With a server that takes everything and time, all that is there arrives."""
        if not hasattr(self, "broker"):
            return
        self.broker.leaf.is_writable = True
        for _ in range(12):
            self.broker.tick(1_000)
            self.collect()
            self.answer_flow_control()
            for client in self.clients.values():
                if client.is_pull and self.missing(client):
                    request = {"batch": 20, "expires": 600 * S}
                    self.broker.send(f"CONSUMER.MSG.NEXT.s.{client.name}", request, reply=client.inbox)
                    self.collect()
        for client in self.clients.values():
            assert self.missing(client) == [], client


TestReaders = ReadersMachine.TestCase
TestReaders.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
